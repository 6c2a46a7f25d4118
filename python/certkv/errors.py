"""What a failed call raises."""


class Error(Exception):
    """A call failed. `status` is its number, `name` that of certkv.h, `cuda_result` the CUresult behind it or 0."""

    def __init__(self, status, name, message, cuda_result=0):
        super().__init__(f"{name}: {message}" if message else name)
        self.status, self.name, self.message, self.cuda_result = status, name, message, cuda_result
