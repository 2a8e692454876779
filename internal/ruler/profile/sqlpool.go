package profile

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync/atomic"
)

// sqlPool is the pool of database/sql over any driver.
type sqlPool struct {
	db        *sql.DB
	connector *tracedConnector
}

// sqlConnector is a driver's connector that dials through our dialer.
type sqlConnector struct {
	driver.Connector
	config poolConfig
	// prepare makes statements with parameters be prepared once per connection. Otherwise the
	// driver gets them as they are.
	prepare bool
}

func openSQLPool(c sqlConnector, err error) (*sqlPool, error) {
	if err != nil {
		return nil, err
	}
	t := &tracedConnector{sqlConnector: c, clock: c.config.dial.clock}
	db := sql.OpenDB(t)
	db.SetMaxOpenConns(c.config.max)
	// The default of two idle connections would close and open the others all the time: that
	// would measure database/sql and not the size of the pool.
	db.SetMaxIdleConns(c.config.max)
	return &sqlPool{db, t}, nil
}

func (p *sqlPool) client() client {
	c := &sqlClient{db: p.db}
	c.grab = func(conn any) error {
		c.wire = conn.(*tracedConn).wire
		return nil
	}
	return c
}

func (p *sqlPool) opened() int64 { return p.connector.opened.Load() }

func (p *sqlPool) close() { _ = p.db.Close() }

func (p *sqlPool) fill(ctx context.Context, n int) error {
	conns := make([]*sql.Conn, n)
	err := inParallel(n, func(i int) (err error) {
		conns[i], err = p.db.Conn(ctx)
		return err
	})
	for _, c := range conns {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	return err
}

// sqlClient is a user of the pool.
type sqlClient struct {
	db   *sql.DB
	conn *sql.Conn
	wire *wire
	grab func(any) error // stores the wire of the driver's connection in wire
	dest []any
}

func (c *sqlClient) acquire(ctx context.Context, t *timeline) error {
	conn, err := c.db.Conn(ctx)
	if err != nil {
		return err
	}
	c.conn = conn
	if t == nil {
		return nil
	}
	if err := conn.Raw(c.grab); err != nil {
		return errors.Join(err, conn.Close())
	}
	if c.wire != nil {
		c.wire.attach(t)
	}
	return nil
}

func (c *sqlClient) run(ctx context.Context, s *statement, args []any) error {
	if !s.query {
		_, err := c.conn.ExecContext(ctx, s.text, args...)
		return err
	}
	rows, err := c.conn.QueryContext(ctx, s.text, args...)
	if err != nil {
		return err
	}
	columns, err := rows.Columns()
	if err != nil {
		return errors.Join(err, rows.Close())
	}
	for len(c.dest) < len(columns) {
		c.dest = append(c.dest, new(any))
	}
	for rows.Next() {
		if err := rows.Scan(c.dest[:len(columns)]...); err != nil {
			return errors.Join(err, rows.Close())
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}

func (c *sqlClient) release(context.Context) {
	if c.wire != nil {
		c.wire.attach(nil)
		c.wire = nil
	}
	// The error of Close repeats the one that the operation already had.
	_ = c.conn.Close()
	c.conn = nil
}

// tracedConnector opens connections and reports that to the operation that needs one.
type tracedConnector struct {
	sqlConnector
	clock  clock
	opened atomic.Int64
}

func (c *tracedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	t := timelineOf(ctx)
	if t != nil {
		t.connectBegins(c.clock.Now())
	}
	var w *wire
	conn, err := c.Connector.Connect(context.WithValue(ctx, dialSlot{}, &w))
	if t != nil {
		t.connectEnds(c.clock.Now())
	}
	if err != nil {
		return nil, err
	}
	c.opened.Add(1)
	return &tracedConn{Conn: conn, wire: w, clock: c.clock, prepare: c.prepare}, nil
}

// tracedConn is a driver's connection in the pool of database/sql. It keeps its prepared
// statements, as database/sql does for each sql.Stmt.
type tracedConn struct {
	driver.Conn
	wire    *wire
	clock   clock
	prepare bool
	stmts   map[string]driver.Stmt
}

// ResetSession is called when the pool hands out a connection that was used before.
func (c *tracedConn) ResetSession(ctx context.Context) error {
	r, ok := c.Conn.(driver.SessionResetter)
	if !ok {
		return nil
	}
	t := timelineOf(ctx)
	if t == nil {
		return r.ResetSession(ctx)
	}
	t.checkBegins(c.clock.Now())
	err := r.ResetSession(ctx)
	t.checkEnds(c.clock.Now())
	return err
}

// IsValid is called when a connection returns to the pool.
func (c *tracedConn) IsValid() bool {
	v, ok := c.Conn.(driver.Validator)
	return !ok || v.IsValid()
}

// CheckNamedValue converts an argument by the driver's rules.
func (c *tracedConn) CheckNamedValue(v *driver.NamedValue) error {
	if k, ok := c.Conn.(driver.NamedValueChecker); ok {
		return k.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

func (c *tracedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if q, ok := c.Conn.(driver.QueryerContext); ok && (len(args) == 0 || !c.prepare) {
		if rows, err := q.QueryContext(ctx, query, args); !errors.Is(err, driver.ErrSkip) {
			return rows, err
		}
	}
	stmt, err := c.prepared(ctx, query)
	if err != nil {
		return nil, err
	}
	q, ok := stmt.(driver.StmtQueryContext)
	if !ok {
		return nil, fmt.Errorf("driver %T has no queries with a context", c.Conn)
	}
	return q.QueryContext(ctx, args)
}

func (c *tracedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if e, ok := c.Conn.(driver.ExecerContext); ok && (len(args) == 0 || !c.prepare) {
		if result, err := e.ExecContext(ctx, query, args); !errors.Is(err, driver.ErrSkip) {
			return result, err
		}
	}
	stmt, err := c.prepared(ctx, query)
	if err != nil {
		return nil, err
	}
	e, ok := stmt.(driver.StmtExecContext)
	if !ok {
		return nil, fmt.Errorf("driver %T has no statements with a context", c.Conn)
	}
	return e.ExecContext(ctx, args)
}

// prepared returns the connection's prepared statement for a text.
func (c *tracedConn) prepared(ctx context.Context, query string) (driver.Stmt, error) {
	if s := c.stmts[query]; s != nil {
		return s, nil
	}
	var s driver.Stmt
	var err error
	if p, ok := c.Conn.(driver.ConnPrepareContext); ok {
		s, err = p.PrepareContext(ctx, query)
	} else {
		s, err = c.Prepare(query)
	}
	if err != nil {
		return nil, err
	}
	if c.stmts == nil {
		c.stmts = make(map[string]driver.Stmt)
	}
	c.stmts[query] = s
	return s, nil
}
