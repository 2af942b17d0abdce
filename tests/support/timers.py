"""A program that continues itself by timers, every ten milliseconds, while it writes a file."""

CONTINUED = """
import ctypes, sys, time

class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("rest", ctypes.c_int * 13)]

class Times(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("again", "again_ns", "first", "first_ns")]

library = ctypes.CDLL(None, use_errno=True)
for number in range(1, 501):
    timer, event = ctypes.c_void_p(), Event(None, 18)
    if library.timer_create(1, ctypes.byref(event), ctypes.byref(timer)):
        sys.exit(f"no timer: {ctypes.get_errno()}")
    later = number * 10_000_000
    library.timer_settime(timer, 0, ctypes.byref(Times(0, 0, later // 10**9, later % 10**9)), None)
print("ready", flush=True)
with open("written", "w", buffering=1) as file:
    while True:
        file.write("more\\n")
"""
