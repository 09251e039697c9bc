"""Nothing in the database says that an effect was there before."""

SQL = "ALTER TABLE magik_effects DROP CONSTRAINT magik_effects_pkey"
