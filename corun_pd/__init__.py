"""CoRun-PD: prefill and decode on separate engines, the same bits as on one."""
