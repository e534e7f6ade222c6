"""CoRun-PD: prefill and decode on separate engines, the same bits as on one."""

__version__ = "0.1.0"
