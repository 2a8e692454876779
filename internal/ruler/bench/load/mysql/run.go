package myload

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/weirdb/weir/internal/ruler/bench/load"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// Setup recreates the workload's tables, over its own connection.
func Setup(ctx context.Context, dsn string, w load.Workload) error {
	work, err := workOf(w)
	if err != nil {
		return err
	}
	s, err := open(ctx, dsn)
	if err != nil {
		return fmt.Errorf("connect to set up: %w", err)
	}
	defer s.Close(ctx)
	for _, sql := range work.setup() {
		if err := s.exec(ctx, sql); err != nil {
			return fmt.Errorf("set up %.60q: %w", sql, err)
		}
	}
	return nil
}

// open logs in by a DSN.
func open(ctx context.Context, dsn string) (*session, error) {
	target, err := mywire.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("read DSN: %w", err)
	}
	return connect(ctx, target)
}

// Run is load.Run over MySQL's protocol. mywire.ParseDSN parses the DSN; it must name a
// database in which the tables exist: see Setup.
func Run(ctx context.Context, c load.Config) (*load.Outcome, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	work, err := workOf(c.Workload)
	if err != nil {
		return nil, err
	}
	target, err := mywire.ParseDSN(c.DSN)
	if err != nil {
		return nil, fmt.Errorf("read DSN: %w", err)
	}
	if target.TLSMode == "" || target.TLSMode == mywire.TLSPreferred {
		target.TLSMode = mywire.TLSDisabled // load.Run would refuse TLS
	}
	d := dialer{target: target, work: work, statement: c.Workload.Statement(), text: c.Text}
	return load.Run(ctx, c, d.dial)
}

// dialer opens the connections of a run.
type dialer struct {
	target    mywire.ConnectConfig
	work      work
	statement load.Template
	text      bool
}

func (d *dialer) dial(ctx context.Context, id int) (_ net.Conn, _ load.Client, err error) {
	s, err := connect(ctx, d.target)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = s.Close(ctx) // the run does not start
		}
	}()
	c := &client{id: id, work: d.work, reply: reply{binary: !d.text, keepsEOF: !s.caps.Has(mywire.CapDeprecateEOF)}}
	if d.text {
		c.text = d.statement
	} else if c.statement, err = s.prepare(ctx, d.statement.Text(func(int) string { return "?" })); err != nil {
		return nil, nil, fmt.Errorf("prepare: %w", err)
	}
	conn, err := s.release()
	return conn, c, err
}

// client is one connection's load.Client.
type client struct {
	id        int
	work      work
	text      load.Template // nil for the prepared protocol
	statement uint32        // ID of the prepared statement
	op        operation
	reply     reply
	// ids holds the insert id of each answered operation, by its number; 0 for one that failed.
	ids []uint64
}

func (c *client) Ask(b []byte, n int64) []byte {
	c.op = c.work.operation(c.id, n)
	c.reply.reset()
	if c.text != nil {
		return appendText(b, c.text, &c.op)
	}
	return appendExecute(b, c.statement, &c.op)
}

func (c *client) Take(b []byte) (used int, done bool, err error) { return c.reply.consume(b) }

func (c *client) Judge() *load.Wrong {
	got := &c.reply.answer
	if got.code == 0 && c.op.want.rows == 0 {
		c.ids = append(c.ids, got.insertID)
	} else {
		c.ids = append(c.ids, 0)
	}
	wrong := c.op.wrong(got, c.reply.detail)
	if wrong == "" {
		return nil
	}
	w := &load.Wrong{Class: "wrong answer", Text: wrong + " " + c.reply.detail, Effect: load.Claimed}
	if got.code != 0 && got.code != c.op.want.code {
		w.Class = "error " + strconv.Itoa(int(got.code))
		w.Effect = load.Refused
		if unsettled(got.code, string(c.reply.state[:])) {
			w.Effect = load.Unknown
		}
	}
	return w
}

// unsettled reports whether the statement may have been executed in spite of an error: the
// connection failed, or was ended by someone.
func unsettled(code uint16, state string) bool {
	switch code {
	case mywire.ErrServerShutdown, mywire.ErrMariaConnectionKilled:
		return true
	}
	return state[:2] == "08"
}

// Quit is a COM_QUIT.
func (*client) Quit() []byte { return mywire.AppendQuit(nil) }

// CreateDatabase creates a database for the load on a private server.
func CreateDatabase(ctx context.Context, dsn, name string) error {
	s, err := open(ctx, dsn)
	if err != nil {
		return fmt.Errorf("connect to set up: %w", err)
	}
	defer s.Close(ctx)
	if err := s.exec(ctx, "CREATE DATABASE "+name); err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}
