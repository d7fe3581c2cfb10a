package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"code.wake.dev/wake/services/recorder/internal/table"
)

// postgresDialect is the dialect of PostgreSQL.
func postgresDialect() *Dialect {
	return &Dialect{
		Name:    table.Postgres,
		Tables:  table.All().Of(table.Postgres),
		extras:  postgresNumbers + postgresKeep + postgresWords + postgresViews(),
		Inserts: "INSERT",
		Bind:    dollarParams,
		Size: `SELECT CAST(coalesce((SELECT sum(pg_column_size(data)) FROM segments), 0) + coalesce((SELECT sum(pg_column_size(data)) FROM tail), 0)
			+ coalesce((SELECT sum(pg_column_size(data)) FROM blobs), 0) + coalesce((SELECT sum(pg_column_size(lines.*)) FROM lines), 0) AS BIGINT)`,
		version:   postgresVersion,
		mark:      func(version int) string { return fmt.Sprintf("UPDATE %s SET version = %d", postgresMark, version) },
		Labels:    "coalesce(json_object_agg(key, value)::text, '{}')",
		Storable:  PostgresText,
		snapshot:  sql.LevelRepeatableRead,
		lock:      "LOCK TABLE streams IN EXCLUSIVE MODE", // readers don't wait for that
		migrating: "SELECT pg_advisory_xact_lock(" + strconv.Itoa(applicationID) + ")",
		Interrupt: true,
	}
}

// dollarParams returns a statement with $1, $2 and so on for ?1, ?2 and so on.
func dollarParams(text string) string {
	b, quoted := []byte(text), false
	for i, c := range b {
		switch {
		case c == '\'':
			quoted = !quoted
		case c == '?' && !quoted && i+1 < len(b) && b[i+1] >= '0' && b[i+1] <= '9':
			b[i] = '$'
		}
	}
	return string(b)
}

// PostgresText returns a text as PostgreSQL takes it. What it refuses, NUL and
// what isn't UTF-8, becomes what people would be shown for it anyway.
func PostgresText(s string) string {
	if strings.IndexByte(s, 0) < 0 && utf8.ValidString(s) {
		return s
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\u2400")
}

// IsKey reports whether a text can be found by an index, in whichever database: PostgreSQL ends what stores a longer one.
func IsKey(s string) bool { return len(PostgresText(s)) <= table.MaxKey }

// IsPostgres reports whether a store is named by the URL of a database.
func IsPostgres(target string) bool {
	return strings.HasPrefix(target, "postgres://") || strings.HasPrefix(target, "postgresql://")
}

// errURL is said instead of what is wrong with a URL, which may show a part of
// the password.
var errURL = errors.New("the URL can't be read: it should be postgres://USER@HOST:PORT/DATABASE, special characters written as %XX; the password may be in PGPASSWORD or in ~/.pgpass")

// connectTimeout bounds a try to connect, unless the URL says otherwise.
const connectTimeout = 10 * time.Second

// postgresConfig reads the URL of a database.
func postgresConfig(target string) (*pgx.ConnConfig, error) {
	c, err := pgx.ParseConfig(target)
	if err != nil {
		return nil, errURL
	}
	if !strings.Contains(target, "connect_timeout=") {
		c.ConnectTimeout = connectTimeout
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "wake"
	}
	return c, nil
}

// postgresName names a database without its user and password.
func postgresName(c *pgx.ConnConfig) string {
	host := c.Host
	if !strings.HasPrefix(host, "/") {
		host = net.JoinHostPort(host, strconv.Itoa(int(c.Port)))
	}
	name := "postgres://" + host + "/" + c.Database
	if path := c.RuntimeParams["search_path"]; path != "" {
		name += "?search_path=" + path
	}
	return name
}

// openPostgres opens the database at a URL.
func (s *DB) openPostgres(ctx context.Context, target string, readOnly bool) error {
	s.Name, s.D = "the database", postgresDialect()
	c, err := postgresConfig(target)
	if err != nil {
		return err
	}
	s.Name = postgresName(c)
	s.Reader = sql.OpenDB(connector{stdlib.GetConnector(*c)})
	s.Reader.SetMaxOpenConns(Readers)
	s.Reader.SetMaxIdleConns(Readers)
	if readOnly {
		return withAdvice(s.checkCurrent(ctx))
	}
	s.Writer = sql.OpenDB(connector{stdlib.GetConnector(*c)})
	s.Writer.SetMaxOpenConns(1)
	return withAdvice(s.migrateSchema(ctx))
}

// Anew says how to record another stream.
func (s *DB) Anew() string {
	if s.Path == "" {
		return "name another database or schema (…?search_path=NAME) and start again: the stream is recorded into that, " + s.Name + " stays readable"
	}
	return "move " + s.Path + " away, with -wal and -shm beside it if they are there, and start again: the stream is recorded into a new file, the old one stays readable"
}

// connector makes connections that take what the recorder stores.
type connector struct{ driver.Connector }

// Connect implements [driver.Connector].
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err // database/sql looks at it
	}
	return connection{conn.(*stdlib.Conn)}, nil
}

type connection struct{ *stdlib.Conn }

// CheckNamedValue makes values what the other back end makes of them, and texts
// such that PostgreSQL takes them, whatever an agent has written.
func (connection) CheckNamedValue(v *driver.NamedValue) (err error) {
	v.Value, err = driver.DefaultParameterConverter.ConvertValue(v.Value)
	if text, ok := v.Value.(string); ok {
		v.Value = PostgresText(text)
	}
	return err // database/sql says which value it is
}

// postgresVersion returns the version of the tables in the schema that is first
// in the search path.
func postgresVersion(ctx context.Context, t *Tx) (version int, err error) {
	var encoding, schema string
	var tables int
	var marked, letters bool
	err = t.Row(ctx, `SELECT current_setting('server_encoding'), coalesce(current_schema(), ''), count(c.oid), coalesce(bool_or(c.relname = ?1), false),
			EXISTS (SELECT FROM pg_catalog.pg_collation WHERE collname = ?2)
		FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relkind IN ('r', 'p') AND n.nspname = current_schema()`,
		postgresMark, postgresLetters).Scan(&encoding, &schema, &tables, &marked, &letters)
	switch {
	case err != nil:
		return 0, err
	case encoding != "UTF8":
		return 0, fmt.Errorf("the database has the encoding %s: make one with UTF8 (createdb --encoding UTF8 --template template0 NAME)", encoding)
	case !letters:
		return 0, fmt.Errorf("the server has no collation %q, by which words are told apart: take a PostgreSQL that was built with ICU, as nearly all are", postgresLetters)
	case schema == "":
		return 0, errors.New("there is no schema of the name in search_path: make it with CREATE SCHEMA")
	case marked:
		var application string
		if err := t.Row(ctx, `SELECT application, version FROM `+postgresMark).Scan(&application, &version); err != nil {
			return 0, err
		}
		if application != "wake" {
			return 0, ErrForeign
		}
		return version, nil
	case tables > 0:
		return 0, fmt.Errorf("%w (schema %s has tables of another program; ?search_path=NAME in the URL names another schema)", ErrForeign, schema)
	}
	return 0, nil
}

// withAdvice says what to do about an error that trying again won't cure.
func withAdvice(err error) error {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	switch {
	case strings.HasPrefix(e.Code, "28"):
		return fmt.Errorf("%w: give the right user in the URL, and the password there, in PGPASSWORD or in ~/.pgpass; the server's pg_hba.conf says who may come from where", err)
	case e.Code == "3D000":
		return fmt.Errorf("%w: make it with createdb, or name another one in the URL", err)
	case e.Code == "42501":
		return fmt.Errorf("%w: the user must be allowed to make tables in the schema (GRANT CREATE, USAGE ON SCHEMA …), or own it", err)
	}
	return err
}

// Away reports whether an error of a database may be over soon: it can't be
// reached, is starting or stopping, or has no room.
func Away(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
		return false
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		passing := []string{"08", "40", "53", "57", "58"}                                  // connections, conflicts, resources, operators, the system
		return slices.Contains(passing, e.Code[:min(2, len(e.Code))]) || e.Code == "25006" // a standby that isn't the primary yet
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	return pgconn.SafeToRetry(err) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}
