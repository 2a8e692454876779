package pgload

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/ruler/bench/load"
)

// Setup recreates the workload's tables, over its own connection.
func Setup(ctx context.Context, dsn string, w load.Workload) error {
	work, err := workOf(w)
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("connect to set up: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, sql := range work.setup() {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("set up %q: %w", sql, err)
		}
	}
	return nil
}

// Run is load.Run over PostgreSQL's protocol. The DSN is a libpq URL or keyword string; the
// tables must exist, see Setup.
func Run(ctx context.Context, c load.Config) (*load.Outcome, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	work, err := workOf(c.Workload)
	if err != nil {
		return nil, err
	}
	cfg, err := pgconn.ParseConfig(c.DSN)
	if err != nil {
		return nil, fmt.Errorf("read DSN: %w", err)
	}
	d := dialer{config: cfg, work: work, statement: c.Workload.Statement(), text: c.Text}
	return load.Run(ctx, c, d.dial)
}

// dialer opens the connections of a run.
type dialer struct {
	config    *pgconn.Config
	work      work
	statement load.Template
	text      bool
}

func (d *dialer) dial(ctx context.Context, id int) (_ net.Conn, _ load.Client, err error) {
	conn, err := pgconn.ConnectConfig(ctx, d.config)
	if err != nil {
		return nil, nil, err
	}
	c := &client{id: id, work: d.work}
	if d.text {
		c.text = d.statement
	} else {
		sql := d.statement.Text(func(i int) string { return "$" + strconv.Itoa(i+1) })
		if _, err := conn.Prepare(ctx, statementName, sql, nil); err != nil {
			_ = conn.Close(context.WithoutCancel(ctx)) // the run does not start
			return nil, nil, fmt.Errorf("prepare: %w", err)
		}
	}
	h, err := conn.Hijack()
	if err != nil {
		return nil, nil, fmt.Errorf("take over: %w", err)
	}
	return h.Conn, c, nil
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
