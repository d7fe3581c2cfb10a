package database

// postgresMark names the tables of a recorder as its own, and their version. A
// schema of the database that has other tables but not this one belongs to another
// program.
const postgresMark = "wake_schema"

// postgresNumbers makes the table of that name, and numbers rows without gaps, as
// SQLite does: the writer that inserts a row holds a lock on streams.
const postgresNumbers = `
CREATE TABLE wake_schema (
	application TEXT   NOT NULL,
	version     BIGINT NOT NULL
);
INSERT INTO wake_schema VALUES ('wake', 0);
CREATE FUNCTION next_run() RETURNS BIGINT LANGUAGE sql VOLATILE SET search_path FROM CURRENT
	AS 'SELECT coalesce(max(id), 0) + 1 FROM runs';
CREATE FUNCTION next_node() RETURNS BIGINT LANGUAGE sql VOLATILE SET search_path FROM CURRENT
	AS 'SELECT coalesce(max(id), 0) + 1 FROM nodes';
ALTER TABLE runs ALTER id SET DEFAULT next_run();
ALTER TABLE nodes ALTER id SET DEFAULT next_node();
ALTER TABLE segments ALTER data SET STORAGE EXTERNAL; -- it is packed already
ALTER TABLE tail ALTER data SET STORAGE EXTERNAL; -- it soon will be
`

// postgresKeep refuses to change events, or to delete those that aren't kept
// elsewhere.
const postgresKeep = `
CREATE FUNCTION events_keep() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'events are never changed';
END $$;
CREATE FUNCTION segments_stay() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
	IF EXISTS (SELECT FROM retired JOIN runs USING (run) WHERE runs.id = OLD.run) THEN
		RETURN OLD;
	END IF;
	RAISE EXCEPTION 'events are never deleted';
END $$;
CREATE FUNCTION tail_stay() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
	IF (SELECT s.first_pos <= OLD.first_pos FROM segments s WHERE s.run = OLD.run AND s.last_pos >= OLD.last_pos ORDER BY s.last_pos LIMIT 1)
		OR EXISTS (SELECT FROM retired JOIN runs USING (run) WHERE runs.id = OLD.run) THEN
		RETURN OLD;
	END IF;
	RAISE EXCEPTION 'events are deleted only when they are sealed';
END $$;
CREATE TRIGGER segments_stay BEFORE DELETE ON segments FOR EACH ROW EXECUTE FUNCTION segments_stay();
CREATE TRIGGER segments_keep BEFORE UPDATE OR TRUNCATE ON segments EXECUTE FUNCTION events_keep();
CREATE TRIGGER tail_stay BEFORE DELETE ON tail FOR EACH ROW EXECUTE FUNCTION tail_stay();
CREATE TRIGGER tail_keep BEFORE UPDATE OR TRUNCATE ON tail EXECUTE FUNCTION events_keep();
`

// postgresLetters is the collation that knows the letters of all languages.
const postgresLetters = "und-x-icu"

// postgresWords is the function that the full text is an index of: words are parted as
// SQLite's index parts them, accents don't count, an underscore is a letter. PostgreSQL
// doesn't take it for one: another letter stands for it. What is a letter, and what its lower case, says ICU, whatever
// the locale of the database: C knows those of ASCII alone. Vowel signs, which ICU takes for no letters, are parts of
// words: the scripts that have them stay as they are.
const postgresWords = `
CREATE FUNCTION wake_words(line TEXT) RETURNS tsvector LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT to_tsvector('simple'::regconfig, translate(regexp_replace(regexp_replace(
		lower(normalize(left(line, 100000), NFD) COLLATE "` + postgresLetters + `"), '[\u0300-\u036f]', '', 'g'),
		'[^[:alnum:]_\u0590-\u10ff]+', ' ', 'g'), U&'_\03C2', U&'\A7F7\03C3'))
$$;
CREATE INDEX lines_text ON lines USING GIN (wake_words(text || E'\n' || input || E'\n' || output));
`
