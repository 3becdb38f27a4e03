"""A whole MPC solve in one launch, one warp per problem."""
