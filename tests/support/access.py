"""Helpers of tests of access."""

from serving.rpc.docket import DocketService
from serving.rpc.flow_control import ReceiveBudget
from serving.rpc.judge import CourtService
from serving.rpc.precedents import PrecedentsService
from serving.settings import Settings


def services():
    memory = ReceiveBudget(64 * 2**20, 20.0)
    return CourtService(Settings(), memory=memory), DocketService(memory=memory), PrecedentsService(memory)
