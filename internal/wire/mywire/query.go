package mywire

import (
	"context"
	"database/sql"
	"fmt"
	"io"

	"github.com/weirdb/weir/internal/wire/netwire"
)

// maxReply bounds the answer to a query of weir's own, in bytes.
const maxReply = 1 << 26

// Query sends a query of weir's own and waits for the answer: the rows of the last result, each
// value as text. It is for logins, probes and tests, not for the data path. After an *Error,
// which the server sent, the connection stays usable; after any other error it does not.
func (s *Server) Query(ctx context.Context, query string) ([][]sql.NullString, error) {
	reply, err := s.ask(ctx, ComQuery, AppendQuery(nil, s.Caps, query))
	if err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	return reply.rows, nil
}

// Exec is Query for statements whose OK is of interest.
func (s *Server) Exec(ctx context.Context, query string) (OK, error) {
	reply, err := s.ask(ctx, ComQuery, AppendQuery(nil, s.Caps, query))
	if err != nil {
		return OK{}, fmt.Errorf("query: %w", err)
	}
	return reply.ok, nil
}

// Prepare prepares a statement and returns its number.
func (s *Server) Prepare(ctx context.Context, query string) (uint32, error) {
	reply, err := s.ask(ctx, ComStmtPrepare, AppendPrepare(nil, query))
	if err != nil {
		return 0, fmt.Errorf("prepare: %w", err)
	}
	return reply.prepared.StmtID, nil
}

// Ping checks whether the server answers.
func (s *Server) Ping(ctx context.Context) error {
	if _, err := s.ask(ctx, ComPing, AppendPing(nil)); err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	return nil
}

// Close sends COM_QUIT and closes the connection.
func (s *Server) Close() error {
	_, _ = s.Conn.Write(AppendQuit(nil)) // the server may be gone already
	return s.Conn.Close()
}

// reply is a copy of the answer to one query.
type reply struct {
	rows     [][]sql.NullString
	ok       OK
	prepared Prepared
}

func (s *Server) ask(ctx context.Context, command byte, packet []byte) (*reply, error) {
	release := netwire.Bound(ctx, s.Conn, 0)
	r, err := s.exchange(command, packet)
	return r, release(err)
}

func (s *Server) exchange(command byte, packet []byte) (*reply, error) {
	if _, err := s.Conn.Write(packet); err != nil {
		return nil, err
	}
	var a Answer
	a.Reset(command, s.Caps)
	a.Resume(NextSeq(packet))
	var all []byte
	from, to := 0, 0 // of the current result, in all
	buf := make([]byte, 16<<10)
	for {
		n, err := s.Conn.Read(buf)
		if err != nil {
			return nil, netwire.UnexpectedEOF(err)
		}
		if all = append(all, buf[:n]...); len(all) > maxReply {
			return nil, fmt.Errorf("answer of more than %d bytes", maxReply)
		}
		for event := EventResult; event == EventResult; {
			var used int
			if used, event, err = a.Feed(all[to:]); err != nil {
				return nil, err
			}
			switch to += used; event {
			case EventResult:
				from = to
			case EventDone:
				return s.reply(&a, all[from:to], len(all)-to)
			case EventInfile, EventAuth:
				return nil, fmt.Errorf("the server wants data from the client: %w", io.ErrUnexpectedEOF)
			}
		}
	}
}

// reply parses the last result.
func (s *Server) reply(a *Answer, result []byte, behind int) (*reply, error) {
	if behind > 0 {
		return nil, fmt.Errorf("%d bytes behind the answer: %w", behind, ErrMalformed)
	}
	if e := a.Err(); e != nil {
		return nil, e
	}
	ok := a.OK()
	r := &reply{ok: ok, prepared: a.Prepared()}
	r.ok.Info, r.ok.State = append([]byte(nil), ok.Info...), append([]byte(nil), ok.State...)
	columns := 0
	for packet := 0; len(result) > 0; packet++ {
		n, whole := Message(result)
		if !whole || n > len(result) {
			return nil, ErrMalformed
		}
		payload, _, err := Payload(result[:n])
		if err != nil {
			return nil, err
		}
		result = result[n:]
		if packet == 0 {
			count, _, ok := ParseLenenc(payload)
			if !ok || count == 0 {
				return r, nil // an OK
			}
			columns = int(count)
			continue
		}
		first := columns + 1
		if !s.Caps.Has(CapDeprecateEOF) {
			first++
		}
		if packet < first || len(result) == 0 {
			continue
		}
		row, err := textRow(payload, columns)
		if err != nil {
			return nil, err
		}
		r.rows = append(r.rows, row)
	}
	return r, nil
}

func textRow(payload []byte, columns int) ([]sql.NullString, error) {
	values, err := ParseTextRow(payload, columns, nil)
	if err != nil {
		return nil, err
	}
	row := make([]sql.NullString, columns)
	for i, v := range values {
		row[i] = sql.NullString{String: string(v), Valid: v != nil}
	}
	return row, nil
}
