"""Unrolled code per stage: one thread per problem walks over the stages."""
