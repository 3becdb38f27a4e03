import sys, time, itertools
import numpy as np, jax, jax.numpy as jnp
from warpmpc.systems.patterns import structure
from warpmpc.symbolic.pattern import symmetric_upper
from warpmpc.symbolic.ordering import order
from warpmpc.symbolic.elimination import eliminate
from warpmpc.symbolic.schedule import build_schedule
from warpmpc.kernels.ldl_engine import TableLDL, LaunchShape
from warpmpc.kernels.tiles import to_tiles, from_tiles
import warp as wp
wp.config.log_level=30 if hasattr(wp.config,'log_level') else None
print(jax.devices())
s=structure("ldl_benchmark"); up,_,_=symmetric_upper(s.K); n=up.n_cols; nv=s.P.shape[0]
orders={o:eliminate(up,order(up,o,s.stages)) for o in ("amd","stage")}
diag=jnp.asarray(up.row_idx==up.col_idx); sign=jnp.asarray(np.where(up.row_idx<nv,1.0,-10.0),dtype=jnp.float32)
def data(B):
    k=jax.random.split(jax.random.key(0),3)
    T=B//32
    v=jax.random.normal(k[0],(T,up.nnz,32))*0.3
    v=jnp.where(diag[None,:,None],sign[None,:,None]*jax.random.uniform(k[1],(T,up.nnz,32),minval=.75,maxval=1.25),v)
    return v, jax.random.normal(k[2],(T,n,32))
def bench(f,*a,reps=10):
    y=jax.block_until_ready(f(*a)); y=jax.block_until_ready(f(*a))
    t=time.perf_counter()
    for _ in range(reps): y=f(*a)
    jax.block_until_ready(y)
    return (time.perf_counter()-t)/reps, y
def check(v,r,x,idx):
    t,l=divmod(idx,32)
    K=up.to_scipy(np.asarray(v[t,:,l],dtype=float)).toarray(); K=np.triu(K)+np.triu(K,1).T
    b=np.asarray(r[t,:,l],dtype=float)
    return np.abs(K@np.asarray(x[t,:,l],dtype=float)-b).max()/np.abs(b).max()
cache={}
def run(B,o,seg,lv,shape,what="fs"):
    key=(o,seg,lv)
    if key not in cache: cache[key]=TableLDL(build_schedule(orders[o],seg,level_scheduling=lv),"float32",tiled=True)
    E=cache[key]
    v,r=datas[B]
    f=jax.jit(lambda v:E.factor(v,shape)); g=jax.jit(lambda L,D,r:E.solve(L,D,r,shape))
    tc=time.time(); tf,(L,D)=bench(f,v,reps=5); 
    ts,x=bench(g,L,D,r,reps=20)
    print(f"B={B} {o} seg={seg} levels={lv} W={shape.warps} block={shape.block} reg={shape.registers}: factor {B/tf/1e6:.2f} M/s {tf*1e3:.3f} ms, solve {B/ts/1e6:.2f} M/s {ts*1e3:.3f} ms, res {max(check(v,r,x,i) for i in (0,B//2,B-1)):.1e} total {time.time()-tc:.1f}",flush=True)
datas={}
def main():
    for B in (102400,):
        datas[B]=data(B)
        for reg in (None,64,80,96): run(B,"amd",16,False,LaunchShape(1,32,reg))
        for blk in (64,128): run(B,"amd",16,False,LaunchShape(1,blk,80))
        for seg in (1,64): run(B,"amd",seg,False,LaunchShape(1,32,80))
        run(B,"stage",16,False,LaunchShape(1,32,80))
        for W in (1,2,4): run(B,"amd",16,True,LaunchShape(W,32,80))
        del datas[B]
    for B in (1024,8192,32768):
        datas[B]=data(B)
        run(B,"amd",16,False,LaunchShape(1,32,None))
        for W in (2,4,8,16): run(B,"amd",16,True,LaunchShape(W,32,None if W<8 else 128 if W<16 else 64))
        del datas[B]
main()
