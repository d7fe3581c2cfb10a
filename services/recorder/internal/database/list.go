package database

import (
	"context"
	"database/sql"
	"database/sql/driver"

	"modernc.org/sqlite"
)

// List are all parameters of a statement, given as one: database/sql would copy and check each of them, which takes more memory than
// the rows and a good part of the time in which SQLite inserts them. The zero value is an empty one.
type List struct{ values []driver.NamedValue }

// Set makes values the parameters. They are as [driver.Value] has them.
func (l *List) Set(values []any) {
	l.values = l.values[:0]
	for i, v := range values {
		l.values = append(l.values, driver.NamedValue{Ordinal: i + 1, Value: v})
	}
}

// Clear drops the parameters, but not the memory for as many.
func (l *List) Clear() { clear(l.values) }

// openLists opens a SQLite file. Statements that are prepared on it take a *[List], too.
func openLists(dsn string) (*sql.DB, error) {
	c, err := sqlite.NewConnector(dsn)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(listConnector{c}), nil
}

type listConnector struct{ driver.Connector }

// Connect opens a connection.
func (c listConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return listConn{conn.(fullConn)}, nil // which the driver's is
}

// fullConn is what database/sql asks of a connection.
type fullConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

type listConn struct{ fullConn }

// PrepareContext prepares a statement.
func (c listConn) PrepareContext(ctx context.Context, text string) (driver.Stmt, error) {
	s, err := c.fullConn.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	return listStmt{s.(fullStmt)}, nil // likewise
}

// CheckNamedValue lets a list pass, and leaves anything else to database/sql.
func (listConn) CheckNamedValue(v *driver.NamedValue) error {
	if _, is := v.Value.(*List); is {
		return nil
	}
	return driver.ErrSkip
}

// fullStmt is what database/sql asks of a statement.
type fullStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

type listStmt struct{ fullStmt }

// ExecContext runs the statement, with what is in a list if it is given one.
func (s listStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if len(args) == 1 {
		if l, is := args[0].Value.(*List); is {
			args = l.values
		}
	}
	return s.fullStmt.ExecContext(ctx, args)
}
