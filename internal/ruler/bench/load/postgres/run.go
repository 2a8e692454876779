package pgload

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/ruler/bench/load"
	"github.com/weirdb/weir/internal/ruler/bench/sqldb"
)

// Protocol is PostgreSQL's. A DSN is a libpq URL or keyword string.
var Protocol = &load.Protocol{
	Open: sqldb.OpenPostgres,
	Tables: func(w load.Workload) ([]string, error) {
		work, err := workOf(w)
		if err != nil {
			return nil, err
		}
		return work.setup(), nil
	},
	Dialer: newDialer,
}

func newDialer(c load.Config) (load.Dial, error) {
	work, err := workOf(c.Workload)
	if err != nil {
		return nil, err
	}
	cfg, err := pgconn.ParseConfig(c.DSN)
	if err != nil {
		return nil, fmt.Errorf("read DSN: %w", err)
	}
	statement := c.Workload.Statement()
	return func(ctx context.Context, id int) (net.Conn, load.Client, error) {
		conn, err := pgconn.ConnectConfig(ctx, cfg)
		if err != nil {
			return nil, nil, err
		}
		k := &client{id: id, work: work}
		if c.Text {
			k.text = statement
		} else {
			sql := statement.Text(func(i int) string { return "$" + strconv.Itoa(i+1) })
			if _, err := conn.Prepare(ctx, statementName, sql, nil); err != nil {
				_ = conn.Close(context.WithoutCancel(ctx)) // the run does not start
				return nil, nil, fmt.Errorf("prepare: %w", err)
			}
		}
		h, err := conn.Hijack()
		if err != nil {
			return nil, nil, fmt.Errorf("take over: %w", err)
		}
		return h.Conn, k, nil
	}, nil
}

// OpenIdle opens a session, runs one query and leaves it idle. It returns how to close it.
func OpenIdle(ctx context.Context, dsn string) (end func(context.Context) error, err error) {
	conn, err := pgconn.Connect(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if _, err := conn.Exec(ctx, "SELECT 1").ReadAll(); err != nil {
		_ = conn.Close(context.WithoutCancel(ctx)) // the query has failed already
		return nil, fmt.Errorf("ask: %w", err)
	}
	return conn.Close, nil
}

// client is one connection's load.Client.
type client struct {
	id    int
	work  work
	text  load.Template // nil for the prepared protocol
	op    operation
	reply reply
}

func (c *client) Ask(b []byte, n int64) []byte {
	c.op = c.work.operation(c.id, n)
	c.reply = reply{}
	if c.text != nil {
		return appendSimple(b, c.text, &c.op)
	}
	return appendPrepared(b, &c.op)
}

func (c *client) Take(b []byte) (used int, done bool, err error) { return c.reply.consume(b) }

func (c *client) Judge() *load.Wrong {
	wrong := c.op.want.wrong(&c.reply.answer)
	if wrong == "" {
		return nil
	}
	w := &load.Wrong{Class: trimZero(c.reply.answer.code[:]), Text: wrong + " " + c.reply.detail, Effect: load.Refused}
	switch {
	case w.Class == "":
		w.Class, w.Effect = "wrong answer", load.Claimed
	case w.Class[:2] == "08" || w.Class[:2] == "57":
		w.Effect = load.Unknown // the connection failed or was ended: it may have been executed
	}
	return w
}

// Quit is a Terminate message.
func (*client) Quit() []byte { return []byte{'X', 0, 0, 0, 4} }
