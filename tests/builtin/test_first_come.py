from inferno.testing import QueuePolicyTests


class TestFirstCome(QueuePolicyTests):
    policy = "first-come"
