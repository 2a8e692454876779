package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// CopyOut runs a COPY … TO STDOUT and passes its bytes to sink, in pieces that may end
// anywhere: a row may have a gigabyte, and is never held as a whole. A piece is valid until
// sink returns. It returns the number of rows by the server's count.
//
// After an error of sink the session is broken: skipping the rest of a large table would take
// as long as reading it.
func (s *Session) CopyOut(ctx context.Context, sql string, sink func([]byte) error) (rows int64, err error) {
	release, err := s.begin(ctx, sql)
	if err != nil {
		return 0, err
	}
	defer func() { err = release(err) }()
	refuse := func(err error) error {
		s.cancel()
		return s.fail(err)
	}
	defer func() { err = errors.Join(err, s.endGather()) }()
	var failed error
	came := 0
	for {
		if n := s.longCopyData(); n > 0 {
			if err := s.pass(n, sink, refuse); err != nil {
				return rows, err
			}
			continue
		}
		typ, body, err := s.read()
		if err != nil {
			return rows, err
		}
		switch typ {
		case pgwire.ServerCopyData:
			piece := s.join(body)
			if came += len(piece); came >= gatherAfter {
				s.gather()
				came = 0
			}
			if err := sink(piece); err != nil {
				return rows, refuse(err)
			}
		case pgwire.ServerCommandComplete:
			tag, err := pgwire.ParseCommandComplete(body)
			if err != nil {
				return rows, s.fail(err)
			}
			n, _ := pgwire.RowsAffected(tag)
			rows = int64(n)
		case pgwire.ServerError:
			e, err := pgwire.ParseError(body)
			if err != nil {
				return rows, s.fail(err)
			}
			if failed = e; e.Fatal() {
				return rows, s.fail(e)
			}
		case pgwire.ServerCopyOutResponse, pgwire.ServerCopyDone:
		case pgwire.ServerReady:
			return rows, failed
		default:
			return rows, s.fail(fmt.Errorf("message %q in a COPY: %w", typ, pgwire.ErrMalformed))
		}
	}
}

// longCopyData returns the length of the content of the next message if it is a CopyData that
// fills more than half of the buffer, otherwise 0.
func (s *Session) longCopyData() int {
	typ, n, ok := pgwire.Peek(s.buf[s.r:s.w])
	if !ok || typ != pgwire.ServerCopyData || n <= len(s.buf)/2 || n > maxMessage {
		return 0
	}
	return n - pgwire.HeaderLen
}

// pass passes the content of a long CopyData on as it arrives.
func (s *Session) pass(n int, sink func([]byte) error, refuse func(error) error) error {
	s.r += pgwire.HeaderLen
	for n > 0 {
		if s.r == s.w {
			if err := s.fill(1); err != nil {
				return err
			}
		}
		piece := s.buf[s.r:min(s.w, s.r+n)]
		if err := sink(piece); err != nil {
			return refuse(err)
		}
		s.r += len(piece)
		n -= len(piece)
	}
	return nil
}

// join moves the contents of the CopyData messages after body, as far as they were read, next
// to it, so that they are one piece:
//
//	before  [h][body][h][row][h][row][h][ro
//	after   [h][body][row][row].....[h][ro
func (s *Session) join(body []byte) []byte {
	start := s.r - len(body)
	end := s.r
	buf := s.buf[:s.w]
	r := s.r
	for {
		if len(buf)-r < pgwire.HeaderLen || buf[r] != pgwire.ServerCopyData {
			break
		}
		n := int(int32(binary.BigEndian.Uint32(buf[r+1:])))
		if n < 4 || len(buf)-r < n+1 {
			break
		}
		end += copy(buf[end:], buf[r+pgwire.HeaderLen:r+n+1])
		r += n + 1
	}
	s.r = r
	return buf[start:end]
}

// CopyIn runs a COPY … FROM STDIN with the bytes of r. It returns the number of rows by the
// server's count. If r fails, the server is told to discard the data, and the error is that of
// r.
func (s *Session) CopyIn(ctx context.Context, sql string, r io.Reader) (rows int64, err error) {
	release, err := s.begin(ctx, sql)
	if err != nil {
		return 0, err
	}
	defer func() { err = release(err) }()
	typ, body, err := s.read()
	if err != nil {
		return 0, err
	}
	if typ != pgwire.ServerCopyInResponse {
		return 0, s.copyRefused(typ, body)
	}
	// The server may reject a row long before the end. Its response is read while data is still
	// being sent; otherwise both sides might wait for each other.
	type verdict struct {
		rows int64
		err  error
	}
	answer := make(chan verdict, 1)
	over := make(chan struct{})
	go func() {
		defer close(over)
		rows, err := s.copyAnswer()
		answer <- verdict{rows, err}
	}()
	sendErr, readErr := s.send(r, over)
	if sendErr != nil {
		// The server's response, if there is one, says why the connection ended.
		_ = s.conn.Close()
	}
	v := <-answer
	switch {
	case readErr != nil:
		return 0, readErr
	case v.err != nil:
		return 0, v.err
	case sendErr != nil:
		return 0, s.fail(sendErr)
	}
	return v.rows, nil
}

// send sends the bytes of r until over is closed. readErr is the error of r.
func (s *Session) send(r io.Reader, over <-chan struct{}) (sendErr, readErr error) {
	if s.out == nil {
		s.out = make([]byte, bufferSize)
	}
	for {
		n, err := readFull(r, s.out[pgwire.HeaderLen:])
		if n > 0 {
			s.out[0] = pgwire.ClientCopyData
			binary.BigEndian.PutUint32(s.out[1:], uint32(n+4))
			if _, err := s.conn.Write(s.out[:pgwire.HeaderLen+n]); err != nil {
				return err, nil
			}
		}
		select {
		case <-over: // rejected: the server would ignore the rest
			return nil, nil
		default:
		}
		switch {
		case err == io.EOF:
			_, err := s.conn.Write(pgwire.AppendCopyDone(nil))
			return err, nil
		case err != nil:
			_, sendErr := s.conn.Write(pgwire.AppendCopyFail(nil, "the source of the data failed"))
			return sendErr, err
		}
	}
}

// readFull fills p unless r ends or fails first.
func readFull(r io.Reader, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = r.Read(p[n:])
		n += m
	}
	return n, err
}

// copyAnswer reads what follows a CopyInResponse, up to ReadyForQuery.
func (s *Session) copyAnswer() (rows int64, failed error) {
	for {
		typ, body, err := s.read()
		if err != nil {
			if failed != nil { // a FATAL error was the last message
				return 0, failed
			}
			return 0, err
		}
		switch typ {
		case pgwire.ServerCommandComplete:
			tag, err := pgwire.ParseCommandComplete(body)
			if err != nil {
				return 0, s.fail(err)
			}
			n, _ := pgwire.RowsAffected(tag)
			rows = int64(n)
		case pgwire.ServerError:
			e, err := pgwire.ParseError(body)
			if err != nil {
				return 0, s.fail(err)
			}
			if failed = e; e.Fatal() {
				return 0, s.fail(e)
			}
		case pgwire.ServerReady:
			return rows, failed
		}
	}
}

// copyRefused reads the rest of a response that is not a CopyInResponse.
func (s *Session) copyRefused(typ byte, body []byte) error {
	failed := error(pgwire.ErrMalformed)
	for {
		switch typ {
		case pgwire.ServerError:
			e, err := pgwire.ParseError(body)
			if err != nil {
				return s.fail(err)
			}
			if failed = e; e.Fatal() {
				return s.fail(e)
			}
		case pgwire.ServerReady:
			return failed
		}
		var err error
		if typ, body, err = s.read(); err != nil {
			return err
		}
	}
}
