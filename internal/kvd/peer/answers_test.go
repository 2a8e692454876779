package peer

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Messages between replicas must neither wait behind large answers that a client of one of them
// does not even read, nor find no room because of them.
func TestLargeAnswersGoBeside(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	for _, apart := range []bool{true, false} {
		l := newLink(&session{nc: near}, &counters{}, linkConfig{limit: 8 << 20, most: MaxMessage, apart: apart, silentTicks: 1})
		answer := wire.Message{Kind: wire.ReadDone, Data: make([]byte, 1<<20)}
		for range 20 {
			if _, err := l.send([]wire.Message{answer}); err != nil && (apart || !errors.Is(err, ErrFull)) {
				t.Fatal(err)
			}
		}
		small := wire.Message{Kind: wire.ReadDone, Request: 1, Data: make([]byte, 100)}
		raft := wire.Message{Kind: wire.Raft, Data: make([]byte, 1<<20)}
		if n, err := l.send([]wire.Message{small, raft}); n != 2 || err != nil {
			t.Fatalf("apart %v: took %d, %v", apart, n, err)
		}
		large, heard := 0, -1 // large answers, and how many of them came before the Raft message
		for l.queued() > 0 {
			run, ok := l.take(nil)
			if !ok {
				t.Fatal("the link has ended")
			}
			checksum(run)
			ms, _, err := readAll(bytes.NewReader(run), maxFrame)
			if !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			for i := range ms {
				switch {
				case ms[i].Kind == wire.Raft:
					heard = large
				case len(ms[i].Data) > 100:
					large++
				}
			}
			l.wrote(run)
		}
		if good := heard >= 0 && heard <= 2; good != apart {
			t.Errorf("apart %v: a Raft message comes behind %d of %d answers (-1: not at all)", apart, heard, large)
		}
	}
}
