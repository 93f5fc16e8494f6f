"""Which settings of a job need a driver of their own.

Settings of a session can differ from job to job; those of the whole application (memory, master, jars ...) are fixed
when a driver starts.  Before one has started there is nobody to ask, so this is a rule; Spark has the last word: a
driver refuses what it cannot set on a session, and that is learned here."""

from __future__ import annotations

from collections.abc import Collection, Mapping

StaticConf = frozenset[tuple[str, str]]

SESSION_PREFIX = "spark.sql."
# Settings of SQL that are fixed with the application all the same.
_FIXED_SQL = (
    "spark.sql.cache.serializer",
    "spark.sql.catalogImplementation",
    "spark.sql.extensions",
    "spark.sql.globalTempDatabase",
    "spark.sql.hive.metastore.",
    "spark.sql.hive.thriftServer.singleSession",
    "spark.sql.queryExecutionListeners",
    "spark.sql.streaming.streamingQueryListeners",
    "spark.sql.ui.",
    "spark.sql.warehouse.dir",
)
# The second words of settings that belong to Spark itself.  What begins with another word is a user's own.
_OWN_TEXT = (
    "acls admin app appStateStore archives authenticate barrier blacklist blockManager broadcast buffer checkpoint "
    "cleaner connect cores decommission default deploy driver dynamicAllocation eventLog excludeOnFailure executor "
    "executorEnv extraListeners files hadoop hadoopRDD history io jars kerberos kryo kryoserializer kubernetes local "
    "locality log logConf log4j logging master maxRemoteBlockSizeFetchToMem memory metrics modify network "
    "plugins port proxy pyspark python r rdd redaction reducer repl resources rpc scheduler security serializer "
    "shuffle speculation ssl stage standalone storage submit task taskMetrics ui unsafe user worker yarn"
)
_OWN = frozenset(_OWN_TEXT.split())
# What a thread says, not an application.
_OF_THREAD = frozenset({"spark.scheduler.pool", "spark.job.description"})


class Statics:
    def __init__(self) -> None:
        self._learned: set[str] = set()

    def of(self, conf: Mapping[str, str]) -> StaticConf:
        return frozenset((key, value) for key, value in conf.items() if key in self._learned or is_static(key))

    def learn(self, keys: Collection[str]) -> None:
        self._learned.update(keys)


def is_static(key: str) -> bool:
    if key in _OF_THREAD or not key.startswith("spark."):
        return False
    if key.startswith(SESSION_PREFIX):
        return key.startswith(_FIXED_SQL)
    return key.split(".")[1] in _OWN
