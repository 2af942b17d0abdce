"""Other systems' interfaces over a staddle sandbox: programs written for them run with one import changed."""
