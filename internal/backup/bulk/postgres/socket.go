package postgres

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// Relay runs a query and passes on the server's response unchanged, message by message, up to
// ReadyForQuery. An error from the server is part of the response; Relay returns only errors of
// the connection or of sink.
func (s *Session) Relay(ctx context.Context, sql string, sink func(message []byte) error) (err error) {
	release, err := s.begin(ctx, sql)
	if err != nil {
		return err
	}
	defer func() { err = release(err) }()
	var sinkErr error
	for {
		typ, body, err := s.read()
		if err != nil {
			return err
		}
		if sinkErr == nil {
			sinkErr = sink(s.buf[s.r-len(body)-pgwire.HeaderLen : s.r])
		}
		switch typ {
		case pgwire.ServerCopyInResponse:
			if _, err := s.conn.Write(pgwire.AppendCopyFail(nil, "no data")); err != nil {
				return s.fail(err)
			}
		case pgwire.ServerReady:
			return sinkErr
		}
	}
}

// A SessionSocket acts as a server for one program of PostgreSQL. The program's statements run
// on an existing session, which is logged in and already in a transaction:
//
//	pg_dump --- unix socket, in a directory of its own --- SessionSocket --- session
//
// So the program shares the locks of the session. With a session of its own, the program would
// have to wait for its locks behind any session that waits for the first one to end: neither
// would ever continue.
//
// A BEGIN of the program is acknowledged but not executed. The program has one connection, and
// the socket's name is removed as soon as that is made, so that a killed process leaves
// nothing.
type SessionSocket struct {
	dir      string
	listener net.Listener
	s        *Session
	use      sync.Locker // locked for each statement
	ended    chan struct{}
}

// socketPort is part of the socket's name, in the form of libpq, and socketDirs is the prefix
// of the sockets' directories.
const (
	socketPort = "5432"
	socketName = ".s.PGSQL." + socketPort
	socketDirs = "weir-dump-"
)

// abandonedAfter is the least age of a directory that is removed because no process listens in
// it: longer than a slow start of pg_dump takes.
const abandonedAfter = time.Hour

// maxSocketPath is the maximum length of a socket's path, in bytes.
const maxSocketPath = 100

// ListenFor opens a socket for a session, in a new directory below dir ("": the directory for
// temporary files) that only this user may enter. use is locked while a statement runs, so that
// others may use the session, too. Close ends it.
func ListenFor(ctx context.Context, s *Session, use sync.Locker, dir string) (*SessionSocket, error) {
	if dir == "" {
		dir = os.TempDir()
	}
	if len(dir)+len("/")+len(socketDirs)+maxRandom+len("/")+len(socketName) > maxSocketPath {
		dir = "/tmp"
	}
	removeAbandoned(dir)
	own, err := os.MkdirTemp(dir, socketDirs)
	if err != nil {
		return nil, fmt.Errorf("make a directory for a socket: %w", err)
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "unix", filepath.Join(own, socketName))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for pg_dump: %w", err), os.Remove(own))
	}
	k := &SessionSocket{dir: own, listener: listener, s: s, use: use, ended: make(chan struct{})}
	go func() {
		defer close(k.ended)
		k.serve(ctx)
	}()
	return k, nil
}

// maxRandom is the maximum number of characters that os.MkdirTemp adds.
const maxRandom = 10

// removeAbandoned removes directories of processes that were killed before a program had
// connected. Directories that cannot be removed, such as those of other users, remain.
func removeAbandoned(dir string) {
	found, _ := filepath.Glob(filepath.Join(dir, socketDirs+"*"))
	for _, own := range found {
		info, err := os.Lstat(own)
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < abandonedAfter {
			continue
		}
		conn, err := net.Dial("unix", filepath.Join(own, socketName))
		if err == nil {
			_ = conn.Close() // a process listens
			continue
		}
		if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT) {
			_ = os.Remove(filepath.Join(own, socketName))
			_ = os.Remove(own)
		}
	}
}

// Close ends the connection and removes the socket.
func (k *SessionSocket) Close() error {
	err := k.listener.Close()
	<-k.ended
	return errors.Join(err, os.RemoveAll(k.dir))
}

// params returns the connection parameters with which libpq reaches the socket.
func (k *SessionSocket) params() map[string]string {
	return map[string]string{
		"host": k.dir, "port": socketPort, "user": k.s.cfg.User, "dbname": k.s.Database(),
		"sslmode": "disable", "gssencmode": "disable", "channel_binding": "disable", "target_session_attrs": "any", "options": " ",
		"require_auth": "none",
	}
}

// serve serves the only client.
func (k *SessionSocket) serve(ctx context.Context) {
	conn, err := k.listener.Accept()
	if err != nil {
		return
	}
	// If this fails, Close fails, too, and reports it.
	_ = os.RemoveAll(k.dir)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	// The client reports errors on its standard error.
	_ = k.converse(ctx, conn)
	stop()
	_ = conn.Close()
}

// converse serves one client to its end.
func (k *SessionSocket) converse(ctx context.Context, conn net.Conn) error {
	in, out := bufio.NewReader(conn), bufio.NewWriterSize(conn, 64<<10)
	if err := k.greet(in, out); err != nil {
		return err
	}
	for {
		typ, err := in.ReadByte()
		if err != nil {
			return err
		}
		body, err := readBody(in)
		if err != nil {
			return err
		}
		switch typ {
		case pgwire.ClientTerminate:
			return nil
		case pgwire.ClientQuery:
			err = k.query(ctx, strings.TrimSuffix(string(body), "\x00"), out)
		default:
			err = fmt.Errorf("message %q: %w", typ, pgwire.ErrMalformed)
		}
		if err != nil {
			return err
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
}

// readBody reads the length of a message and what follows it.
func readBody(in io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, err
	}
	n := int(int32(binary.BigEndian.Uint32(head[:])))
	if n < 4 || n > maxMessage {
		return nil, pgwire.ErrMalformed
	}
	body := make([]byte, n-4)
	_, err := io.ReadFull(in, body)
	return body, err
}

// greet answers a startup packet as the server did when the session logged in.
func (k *SessionSocket) greet(in io.Reader, out *bufio.Writer) error {
	if _, err := readBody(in); err != nil {
		return err
	}
	greeting := pgwire.AppendAuthOK(nil)
	for _, p := range k.s.backend.Params {
		switch p.Name { // Settings has changed these since
		case "client_encoding":
			p.Value = k.s.Encoding()
		case "standard_conforming_strings":
			p.Value = "on"
		}
		greeting = pgwire.AppendParameterStatus(greeting, p.Name, p.Value)
	}
	greeting = pgwire.AppendReadyForQuery(greeting, 'I')
	if _, err := out.Write(greeting); err != nil {
		return err
	}
	return out.Flush()
}

// query runs a statement on the session, except for one that begins a transaction.
func (k *SessionSocket) query(ctx context.Context, sql string, out *bufio.Writer) error {
	words := strings.ToUpper(strings.TrimSpace(sql))
	tag := ""
	switch {
	case strings.HasPrefix(words, "BEGIN"):
		tag = "BEGIN"
	case strings.HasPrefix(words, "SET TRANSACTION "):
		tag = "SET"
	}
	if tag != "" {
		_, err := out.Write(pgwire.AppendReadyForQuery(pgwire.AppendCommandComplete(nil, tag), 'T'))
		return err
	}
	k.use.Lock()
	defer k.use.Unlock()
	return k.s.Relay(ctx, sql, func(message []byte) error {
		_, err := out.Write(message)
		return err
	})
}
