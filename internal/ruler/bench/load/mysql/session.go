package myload

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// session waits for each answer, which is fast enough for everything except the load itself. It
// is not safe for concurrent use.
type session struct {
	conn   net.Conn
	caps   mywire.Caps
	in     *bufio.Reader
	packet []byte // the last one received, reused
}

// capsWanted are what common drivers ask for: no session tracking, and results that end with an
// OK packet.
const capsWanted = mywire.CapLongPassword | mywire.CapLongFlag | mywire.CapTransactions | mywire.CapMultiResults |
	mywire.CapPSMultiResults | mywire.CapPluginAuthLenenc | mywire.CapConnectAttrs | mywire.CapDeprecateEOF

// connect logs in.
func connect(ctx context.Context, target mywire.ConnectConfig) (*session, error) {
	target.Caps = capsWanted
	l, err := mywire.Connect(ctx, target)
	if err != nil {
		return nil, err
	}
	return &session{conn: l.Conn, caps: l.Caps, in: bufio.NewReaderSize(l.Conn, 64<<10)}, nil
}

// bind closes the connection when ctx is done. The returned function ends that, and replaces an
// error that it caused by ctx's.
func (s *session) bind(ctx context.Context) func(error) error {
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Close() }) // it is no longer usable
	return func(err error) error {
		stop()
		return errors.Join(err, ctx.Err())
	}
}

// Close ends the session.
func (s *session) Close(context.Context) error {
	_, err := s.conn.Write(mywire.AppendQuit(nil))
	return errors.Join(err, s.conn.Close())
}

// read returns the next packet, which is valid until the next call.
func (s *session) read() ([]byte, error) {
	var head [headerLen]byte
	if _, err := io.ReadFull(s.in, head[:]); err != nil {
		return nil, fmt.Errorf("read packet: %w", err)
	}
	size := int(head[0]) | int(head[1])<<8 | int(head[2])<<16
	if size == 0 || size == mywire.MaxPayload {
		return nil, fmt.Errorf("packet of %d bytes", size)
	}
	if cap(s.packet) < size {
		s.packet = make([]byte, size)
	}
	s.packet = s.packet[:size]
	if _, err := io.ReadFull(s.in, s.packet); err != nil {
		return nil, fmt.Errorf("read packet: %w", err)
	}
	if mywire.IsError(s.packet) {
		e, err := mywire.ParseError(s.packet)
		if err != nil {
			return nil, err
		}
		return nil, e
	}
	return s.packet, nil
}

// rows sends a statement and calls row with the columns of each row, as text and nil for NULL;
// they are valid until it returns.
func (s *session) rows(ctx context.Context, sql string, row func(columns [][]byte) error) (err error) {
	done := s.bind(ctx)
	defer func() { err = done(err) }()
	if _, err := s.conn.Write(mywire.AppendQuery(nil, s.caps, sql)); err != nil {
		return fmt.Errorf("send statement: %w", err)
	}
	p, err := s.read()
	if err != nil || mywire.IsOK(p) {
		return err
	}
	n := int(p[0])
	for range n {
		if _, err := s.read(); err != nil {
			return err
		}
	}
	if !s.caps.Has(mywire.CapDeprecateEOF) {
		if _, err := s.read(); err != nil {
			return err
		}
	}
	var columns [][]byte
	for {
		p, err := s.read()
		if err != nil || mywire.IsEnd(p, s.caps) {
			return err
		}
		if columns, err = mywire.ParseTextRow(p, n, columns[:0]); err != nil {
			return err
		}
		if err := row(columns); err != nil {
			return err
		}
	}
}

// exec sends a statement and discards its rows.
func (s *session) exec(ctx context.Context, sql string) error {
	return s.rows(ctx, sql, func([][]byte) error { return nil })
}

// prepare returns the ID of a prepared statement.
func (s *session) prepare(ctx context.Context, sql string) (id uint32, err error) {
	done := s.bind(ctx)
	defer func() { err = done(err) }()
	if _, err := s.conn.Write(mywire.AppendPrepare(nil, sql)); err != nil {
		return 0, fmt.Errorf("send statement: %w", err)
	}
	p, err := s.read()
	if err != nil {
		return 0, err
	}
	ready, err := mywire.ParsePrepared(p)
	if err != nil {
		return 0, err
	}
	for _, n := range []int{int(ready.Params), int(ready.Columns)} {
		if n > 0 && !s.caps.Has(mywire.CapDeprecateEOF) {
			n++ // the packet that ends them
		}
		for range n {
			if _, err := s.read(); err != nil {
				return 0, err
			}
		}
	}
	return ready.StmtID, nil
}

// release returns the connection, which must be idle, and gives up its ownership.
func (s *session) release() (net.Conn, error) {
	if s.in.Buffered() > 0 {
		return nil, errors.New("the server sent more than was requested")
	}
	return s.conn, nil
}
