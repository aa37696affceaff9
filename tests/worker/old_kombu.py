"""For workers on kombu before 5.7: look for lost messages on Redis every 10 s instead of every 100 s."""

from kombu.transport.redis import QoS

_start, _num, _interval = QoS.restore_visible.__defaults__
QoS.restore_visible.__defaults__ = (_start, _num, 1)
