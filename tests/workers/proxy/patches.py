"""What makes a drill cheap: nothing is read from disk twice, records are written in the loop, into one database."""

from functools import lru_cache

from sqlalchemy import create_engine, delete
from sqlalchemy.pool import StaticPool

import workers.cell.rollout.paced.engine as paced_engine
import workers.proxy.server as proxy_server
from infra.records import schema
from infra.tokenizer import ChatTokenizer
from tests.workers.proxy.virtual import InlineRecorder
from workers.cell.rollout.paced.vocabulary import read_vocabulary


@lru_cache(maxsize=1)
def tokenizer_of(folder):
    return ChatTokenizer(folder)


@lru_cache(maxsize=4)
def vocabulary_of(folder, size):
    return read_vocabulary(folder, size)


@lru_cache(maxsize=1)
def memory():
    """One database for all drills of a process, so that no statement is compiled twice."""
    database = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    schema.metadata.create_all(database)
    return database


def empty_database():
    with memory().begin() as connection:
        for table in schema.metadata.tables.values():
            connection.execute(delete(table))
    return memory()


class Patches:
    """What makes a drill cheap: nothing is read from disk twice, records are written in the loop."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr(proxy_server, "Recorder", InlineRecorder)
        monkeypatch.setattr(proxy_server, "ChatTokenizer", tokenizer_of)
        monkeypatch.setattr(paced_engine, "read_vocabulary", vocabulary_of)
