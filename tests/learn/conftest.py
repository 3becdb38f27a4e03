"""A task, a data set and a policy that the tests of `learn` share."""

import pytest
from learn_cases import task as make_task

from warpmpc.learn import DataSettings, TrainSettings, synthesize, train


@pytest.fixture(scope="session")
def task():
    return make_task()


@pytest.fixture(scope="session")
def small():
    return DataSettings(rollouts=16, shards=3, bound_rollouts=16)


@pytest.fixture(scope="session")
def data(task, small, tmp_path_factory):
    return synthesize(task, folder=tmp_path_factory.mktemp("data"), settings=small)


@pytest.fixture(scope="session")
def policy(data, task):
    settings = TrainSettings(hidden=(16, 15), epochs=150, minibatch=128, patience=0)
    return train(data, settings, task=task)
