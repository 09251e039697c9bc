"""The trigger tells of what is due at this moment, and not of what will be within five seconds."""

from magik_sa.migrations import v001

from . import without

FLAG = v001.FLAG_KEY_SQL.format(table="TG_RELID", queue="due")
DUE = without(v001.ADDED, " + interval '5 s'")
SQL = without(v001.WAKE, "CREATE FUNCTION", "CREATE OR REPLACE FUNCTION").format(
    schema="", verb="added", find=DUE, flag=FLAG
)
