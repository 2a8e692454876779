package myload

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// fakeServer speaks enough of the protocol for an insert run and for Verify, and
// lies where it is told to.
type fakeServer struct {
	dsn string
	// lie may change what the n-th insert is answered with and what is stored.
	lie func(n int64, told *mywire.OK, stored *[]fakeRow)

	mu    sync.Mutex
	count int64
	table []fakeRow
}

type fakeRow struct{ id, client, n int64 }

const fakeCaps = mywire.CapLongPassword | mywire.CapProtocol41 | mywire.CapSecureConnection | mywire.CapPluginAuth |
	mywire.CapTransactions | mywire.CapConnectWithDB | mywire.CapDeprecateEOF

func startFake(t *testing.T, lie func(n int64, told *mywire.OK, stored *[]fakeRow)) *fakeServer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var clients sync.WaitGroup
	t.Cleanup(func() {
		ln.Close()
		clients.Wait()
	})
	f := &fakeServer{dsn: "mysql://root@" + ln.Addr().String() + "/bench", lie: lie}
	clients.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			clients.Go(func() {
				defer conn.Close()
				if err := f.serve(conn); err != nil {
					t.Error(err)
				}
			})
		}
	})
	return f
}

// receive returns the payload of the next packet, nil at the end.
func receive(conn net.Conn) ([]byte, error) {
	head := make([]byte, headerLen)
	if _, err := io.ReadFull(conn, head); err != nil {
		return nil, nil
	}
	n, _, _ := mywire.Peek(head)
	p := make([]byte, n)
	_, err := io.ReadFull(conn, p)
	return p, err
}

func (f *fakeServer) serve(conn net.Conn) error {
	greeting := &mywire.Greeting{Version: "8.0.0-fake", Caps: fakeCaps, Salt: []byte(strings.Repeat("s", 20)), Plugin: mywire.PluginNative, Status: mywire.StatusAutocommit}
	if _, err := conn.Write(mywire.AppendGreeting(nil, greeting)); err != nil {
		return err
	}
	p, err := receive(conn)
	if err != nil || p == nil {
		return err
	}
	r, err := mywire.ParseResponse(p)
	if err != nil {
		return err
	}
	out := mywire.AppendOK(nil, 2, r.Caps, &mywire.OK{Status: mywire.StatusAutocommit})
	for {
		if _, err := conn.Write(out); err != nil {
			return err
		}
		p, err := receive(conn)
		if err != nil || p == nil || p[0] == mywire.ComQuit {
			return err
		}
		if out, err = f.answer(p, r.Caps); err != nil {
			return err
		}
	}
}

func (f *fakeServer) answer(p []byte, caps mywire.Caps) ([]byte, error) {
	var row fakeRow
	switch sql := string(p[1:]); p[0] {
	case mywire.ComStmtPrepare:
		out := mywire.AppendPrepared(nil, 1, mywire.Prepared{StmtID: 9, Params: 2})
		for i := range byte(2) { // definitions of the parameters, which nobody reads
			out = append(out, column(2+i, 8)...)
		}
		return out, nil
	case mywire.ComStmtExecute:
		args := p[len(p)-16:]
		row.client, row.n = int64(binary.LittleEndian.Uint64(args)), int64(binary.LittleEndian.Uint64(args[8:]))
	default:
		if strings.HasPrefix(sql, "SELECT id") {
			return f.rows(caps), nil
		}
		if _, err := fmt.Sscanf(sql, "INSERT INTO test (value, created_at) VALUES (%d, %d)", &row.client, &row.n); err != nil {
			return nil, fmt.Errorf("%q: %w", sql, err)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	row.id = f.count + 1
	told := &mywire.OK{AffectedRows: 1, LastInsertID: uint64(row.id), Status: mywire.StatusAutocommit}
	stored := []fakeRow{row}
	if f.lie != nil {
		f.lie(f.count, told, &stored)
	}
	f.table = append(f.table, stored...)
	f.count++
	return mywire.AppendOK(nil, 1, caps, told), nil
}

func (f *fakeServer) rows(caps mywire.Caps) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	var rows [][][]byte
	for _, r := range f.table {
		rows = append(rows, [][]byte{fmt.Append(nil, r.id), fmt.Append(nil, r.client), fmt.Append(nil, r.n)})
	}
	return mywire.AppendTextResult(nil, caps, mywire.StatusAutocommit, []string{"id", "value", "created_at"}, rows)
}
