package binlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// pieces is a connection on which what was sent arrives in pieces.
type pieces struct {
	net.Conn
	r       io.Reader
	largest int
	rnd     *rand.Rand
}

func (p *pieces) Read(b []byte) (int, error) {
	return p.r.Read(b[:min(len(b), 1+p.rnd.IntN(p.largest))])
}

func (p *pieces) SetReadDeadline(time.Time) error { return nil }

// streamOf is a stream whose server sends what r holds, up to so many bytes at a
// time.
func streamOf(r io.Reader, largest int) *Stream {
	cfg := StreamConfig{MaxEvent: 40 << 20}.withDefaults()
	conn := &pieces{r: r, largest: largest, rnd: rand.New(rand.NewPCG(1, 2))}
	return &Stream{cfg: cfg, server: &mywire.Server{Conn: conn}, framer: framer{offset: -1}, buf: make([]byte, 1<<10)}
}

func TestEventsOfAnySizeInAnyPieces(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, largest := range []int{32 << 10, 1 << 22} {
		var sent []byte
		var want [][]byte
		seq := byte(0)
		sizes := []int{mywire.MaxPayload - 1, mywire.MaxPayload + 5, 0, 1}
		for range 200 {
			sizes = append(sizes, rnd.IntN(1<<rnd.IntN(19)))
		}
		for _, n := range sizes {
			e := rawEvent(IgnorableEvent, bytes.Repeat([]byte{byte(n)}, n))
			want = append(want, e)
			packets := mywire.AppendPacket(nil, seq, append([]byte{packetEvent}, e...))
			sent = append(sent, packets...)
			seq = mywire.NextSeq(packets)
		}
		s := streamOf(bytes.NewReader(sent), largest)
		for i, raw := range want {
			e, err := s.Next(t.Context())
			if err != nil {
				t.Fatalf("event %d of %d bytes: %v", i, len(raw), err)
			}
			if !bytes.Equal(e.Raw, raw) {
				t.Fatalf("event %d of %d bytes comes out otherwise", i, len(raw))
			}
		}
		if _, err := s.Next(t.Context()); !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			t.Errorf("connection closed: %v", err)
		}
		if len(s.buf) > bufferSize {
			t.Errorf("the buffer still has %d bytes", len(s.buf))
		}
	}
}

// rawEvent makes an event without a checksum.
func rawEvent(typ EventType, body []byte) []byte {
	b := make([]byte, HeaderLen, HeaderLen+len(body))
	b[4] = byte(typ)
	binary.LittleEndian.PutUint32(b[9:], uint32(HeaderLen+len(body)))
	return append(b, body...)
}

func TestStreamRefusesWhatIsNoEvent(t *testing.T) {
	for _, tc := range []struct {
		name string
		sent []byte
		want error
	}{
		{"end", mywire.AppendEOF(nil, 0, 0, 0), io.EOF},
		{"out of order", mywire.AppendPacket(nil, 5, []byte{0}), mywire.ErrMalformed},
		{"other", mywire.AppendPacket(nil, 0, []byte{7}), mywire.ErrMalformed},
		{"empty", mywire.AppendPacket(nil, 0, nil), mywire.ErrMalformed},
		{"short event", mywire.AppendPacket(nil, 0, []byte{0, 1, 2}), ErrMalformed},
		{"purged", mywire.AppendError(nil, 0, mywire.NewError(errReadingLog, "Could not find first log file name in binary log index file")), ErrPurged},
		{"replaced", mywire.AppendError(nil, 0, mywire.NewError(errReadingLog, "A slave with the same server_uuid/server_id as this slave has connected to the master")), ErrReplaced},
		{"too long", mywire.AppendHeader(nil, mywire.MaxPayload, 0), errTooLong},
	} {
		s := streamOf(bytes.NewReader(tc.sent), 1<<20)
		s.cfg.MaxEvent = 1 << 20
		_, err := s.Next(t.Context())
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
		if _, again := s.Next(t.Context()); again != err { //nolint:errorlint // the same one
			t.Errorf("%s: %v the second time", tc.name, again)
		}
	}
}

func TestStreamConfigIsChecked(t *testing.T) {
	for _, cfg := range []StreamConfig{
		{Start: Start{Oldest: true, GTIDs: &GTIDSet{}}},
		{Start: Start{Position: Position{"", 4}}},
		{Start: Start{Position: Position{"f", 3}}},
		{Start: Start{Position: Position{"f", 1 << 32}}},
		{Heartbeat: time.Microsecond},
	} {
		if err := cfg.withDefaults().validate(); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
	if err := (StreamConfig{}).withDefaults().validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
}
