package pgrepl

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

func TestLSN(t *testing.T) {
	for s, l := range map[string]LSN{"0/0": 0, "16/B374D848": 0x16B374D848, "FFFFFFFF/FFFFFFFF": 1<<64 - 1, "0/1": 1} {
		got, err := ParseLSN(s)
		if err != nil || got != l || l.String() != s {
			t.Errorf("%s: %s, %v, want %s", s, got, err, l)
		}
	}
	for _, s := range []string{"", "0", "/", "0/", "/0", "x/0", "0/-1", "100000000/0", "0/0/0", " 0/0"} {
		if got, err := ParseLSN(s); err == nil {
			t.Errorf("%q: %s, want an error", s, got)
		}
	}
}

func TestSegment(t *testing.T) {
	const mib = 1 << 20
	for name, s := range map[string]Segment{
		"000000010000000000000001": {1, 1, 16 * mib},
		"0000000A00000002000000FF": {10, 2*256 + 255, 16 * mib},
		"000000010000000100000003": {1, 7, 1 << 30},
		"000000010000000000000FFF": {1, 4095, mib},
	} {
		if got := s.Name(); got != name {
			t.Errorf("%+v: %s, want %s", s, got, name)
		}
		if got, err := ParseSegment(name, s.Size); err != nil || got != s {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, s)
		}
		if got := SegmentAt(s.Timeline, s.End()-1, s.Size); got != s {
			t.Errorf("at %s: %+v, want %+v", s.End()-1, got, s)
		}
		if got := SegmentAt(s.Timeline, s.End(), s.Size); got.Number != s.Number+1 || got.Start() != s.End() {
			t.Errorf("at %s: %+v, want the one behind %+v", s.End(), got, s)
		}
	}
	for name, size := range map[string]int64{
		"00000001000000000000000":  16 * mib,
		"00000001000000000000000G": 16 * mib,
		"000000010000000000000100": 16 * mib,
		"000000010000000000000004": 1 << 30,
		"000000010000000000000001": 3 * mib,
		"000000010000000000000002": 0,
	} {
		if got, err := ParseSegment(name, size); err == nil {
			t.Errorf("%s of %d bytes: %+v, want an error", name, size, got)
		}
	}
}

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int64{"16MB": 16 << 20, "1GB": 1 << 30, "8kB": 8192, "12B": 12, "7": 7, "2TB": 2 << 40} {
		if got, err := parseSize(s); err != nil || got != want {
			t.Errorf("%s: %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "MB", "1mB", "1 MB", "-1", "1MBMB", "99999999999TB"} {
		if got, err := parseSize(s); err == nil {
			t.Errorf("%q: %d, want an error", s, got)
		}
	}
}

func TestParseVersion(t *testing.T) {
	for s, want := range map[string]int{"15.18 (Debian 15.18-0+deb12u1)": 150018, "18beta1": 180000, "12.0": 120000, "17devel": 170000, "10.23": 100023} {
		if got, err := parseVersion(s); err != nil || got != want {
			t.Errorf("%s: %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "9.6.24", "x"} {
		if got, err := parseVersion(s); err == nil {
			t.Errorf("%q: %d, want an error", s, got)
		}
	}
}

func TestCreateSlotCommand(t *testing.T) {
	for _, tt := range []struct {
		cfg     SlotConfig
		version int
		want    string
	}{
		{SlotConfig{Name: "s", Kind: PhysicalSlot}, 150000, `CREATE_REPLICATION_SLOT "s" PHYSICAL`},
		{SlotConfig{Name: "s", Kind: PhysicalSlot, Reserve: true, Temporary: true}, 180000, `CREATE_REPLICATION_SLOT "s" TEMPORARY PHYSICAL RESERVE_WAL`},
		{SlotConfig{Name: "s", Kind: LogicalSlot}, 120000, `CREATE_REPLICATION_SLOT "s" LOGICAL "pgoutput" NOEXPORT_SNAPSHOT`},
		{SlotConfig{Name: "s", Kind: LogicalSlot, Snapshot: ExportSnapshot}, 149999, `CREATE_REPLICATION_SLOT "s" LOGICAL "pgoutput" EXPORT_SNAPSHOT`},
		{SlotConfig{Name: "s", Kind: LogicalSlot, Snapshot: UseSnapshot, Plugin: "test_decoding"}, 140000, `CREATE_REPLICATION_SLOT "s" LOGICAL "test_decoding" USE_SNAPSHOT`},
		{SlotConfig{Name: "s", Kind: LogicalSlot, Snapshot: UseSnapshot, Temporary: true}, 150000, `CREATE_REPLICATION_SLOT "s" TEMPORARY LOGICAL "pgoutput" (SNAPSHOT 'use')`},
		{SlotConfig{Name: "s", Kind: LogicalSlot, Failover: true}, 170000, `CREATE_REPLICATION_SLOT "s" LOGICAL "pgoutput" (SNAPSHOT 'nothing', FAILOVER)`},
	} {
		if got, err := createSlot(tt.cfg, tt.version); err != nil || got != tt.want {
			t.Errorf("%+v for %d: %s, %v, want %s", tt.cfg, tt.version, got, err, tt.want)
		}
	}
	for want, cfg := range map[string]SlotConfig{
		"slot name":     {Name: "A", Kind: PhysicalSlot},
		`slot name ""`:  {Kind: PhysicalSlot},
		"kind":          {Name: "s"},
		"no plugin":     {Name: "s", Kind: PhysicalSlot, Plugin: "pgoutput"},
		"snapshot":      {Name: "s", Kind: LogicalSlot, Snapshot: "x"},
		"PostgreSQL 17": {Name: "s", Kind: LogicalSlot, Failover: true},
	} {
		if got, err := createSlot(cfg, 160000); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %s, %v, want %q", cfg, got, err, want)
		}
	}
}

// scripted returns a connection to a server that the test plays.
func scripted(t *testing.T) (*Conn, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	played, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c := newConn(&pgwire.Backend{Conn: client}, Logical, 150000)
	t.Cleanup(func() {
		_ = c.Close()
		_ = played.Close()
	})
	return c, played
}

// copyBoth begins a stream on a scripted connection.
func copyBoth(t *testing.T, cfg StreamConfig) (*Stream, net.Conn) {
	t.Helper()
	c, played := scripted(t)
	write(t, played, pgwire.AppendMessage(nil, pgwire.ServerCopyBothResponse, []byte{0, 0, 0}))
	s, err := c.StartLogical(patient(t), LogicalConfig{StreamConfig: cfg, Slot: "s"})
	if err != nil {
		t.Fatal(err)
	}
	typ, body := readMessage(t, played)
	if typ != pgwire.ClientQuery || string(body) != "START_REPLICATION SLOT \"s\" LOGICAL 0/0\x00" {
		t.Fatalf("command %c %q", typ, body)
	}
	return s, played
}

// piped is copyBoth within a bubble of virtual time, in which no machine is too
// slow to answer in time.
func piped(t *testing.T, cfg StreamConfig) (*Stream, net.Conn) {
	t.Helper()
	client, played := net.Pipe()
	c := newConn(&pgwire.Backend{Conn: client}, Logical, 150000)
	t.Cleanup(func() {
		_ = c.Close()
		_ = played.Close()
	})
	type begun struct {
		s   *Stream
		err error
	}
	starting := make(chan begun, 1)
	go func() {
		s, err := c.StartLogical(patient(t), LogicalConfig{StreamConfig: cfg, Slot: "s"})
		starting <- begun{s, err}
	}()
	readMessage(t, played)
	write(t, played, pgwire.AppendMessage(nil, pgwire.ServerCopyBothResponse, []byte{0, 0, 0}))
	b := <-starting
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.s, played
}

func write(t *testing.T, conn net.Conn, messages ...[]byte) {
	t.Helper()
	for _, m := range messages {
		if _, err := conn.Write(m); err != nil {
			t.Fatal(err)
		}
	}
}

func readMessage(t *testing.T, conn net.Conn) (byte, []byte) {
	t.Helper()
	var head [pgwire.HeaderLen]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		t.Fatal(err)
	}
	typ, length, _ := pgwire.Peek(head[:])
	body := make([]byte, length-pgwire.HeaderLen)
	if _, err := io.ReadFull(conn, body); err != nil {
		t.Fatal(err)
	}
	return typ, body
}

func keepalive(end LSN, reply byte) []byte {
	b := binary.BigEndian.AppendUint64([]byte{frameKeepalive}, uint64(end))
	b = binary.BigEndian.AppendUint64(b, uint64(protocolMicros(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC))))
	return pgwire.AppendCopyData(nil, append(b, reply))
}

func data(start LSN, payload string) []byte {
	b := binary.BigEndian.AppendUint64([]byte{frameData}, uint64(start))
	b = binary.BigEndian.AppendUint64(b, uint64(start)+uint64(len(payload)))
	b = binary.BigEndian.AppendUint64(b, 0)
	return pgwire.AppendCopyData(nil, append(b, payload...))
}

func TestStreamAnswersAndReports(t *testing.T) {
	s, played := copyBoth(t, StreamConfig{StatusInterval: time.Hour})
	write(t, played, data(7, "seven"), keepalive(100, 1))
	f, err := s.Receive(patient(t))
	if err != nil || f.Keepalive() || string(f.Data) != "seven" || f.Start != 7 || f.End != 12 || !f.SentAt.Equal(epoch) {
		t.Fatalf("%+v, %v", f, err)
	}
	f, err = s.Receive(patient(t))
	if err != nil || !f.Keepalive() || !f.ReplyRequested || f.End != 100 || !f.SentAt.Equal(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)) {
		t.Fatalf("%+v, %v", f, err)
	}
	// The reply comes with the next Receive, and tells what was set meanwhile.
	s.SetPosition(Position{Written: 100, Flushed: 90, Applied: 80})
	s.SetPosition(At(85)) // a field never goes back
	ctx, cancel := context.WithCancel(patient(t))
	received := make(chan error, 1)
	go func() {
		_, err := s.Receive(ctx)
		received <- err
	}()
	typ, body := readMessage(t, played)
	p := []uint64{binary.BigEndian.Uint64(body[1:]), binary.BigEndian.Uint64(body[9:]), binary.BigEndian.Uint64(body[17:])}
	if diff := cmp.Diff([]uint64{100, 90, 85}, p); typ != pgwire.ClientCopyData || body[0] != frameStatus || len(body) != statusLen || body[33] != 0 || diff != "" {
		t.Errorf("status %q, positions (-want +got):\n%s", body, diff)
	}
	if at := protocolTime(int64(binary.BigEndian.Uint64(body[25:]))); time.Since(at).Abs() > time.Hour {
		t.Errorf("status of %v", at)
	}
	cancel()
	if err := <-received; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	// Half a message before the end of a context is not lost.
	whole := data(12, "twelve")
	write(t, played, whole[:9])
	short, cancel := context.WithTimeout(patient(t), 20*time.Millisecond)
	defer cancel()
	if _, err := s.Receive(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("half a message: %v", err)
	}
	write(t, played, whole[9:])
	if f, err := s.Receive(patient(t)); err != nil || string(f.Data) != "twelve" {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestStreamReportsAtIntervals(t *testing.T) {
	s, played := copyBoth(t, StreamConfig{StatusInterval: 10 * time.Millisecond})
	s.SetPosition(At(7))
	for range 3 { // though nobody receives
		if _, body := readMessage(t, played); body[0] != frameStatus || body[33] != 0 {
			t.Errorf("%q", body)
		}
	}
}

func TestStreamNoticesASilentServer(t *testing.T) { synctest.Test(t, streamNoticesASilentServer) }

func streamNoticesASilentServer(t *testing.T) {
	s, played := piped(t, StreamConfig{StatusInterval: time.Hour, Timeout: 200 * time.Millisecond})
	asked := make(chan byte, 10)
	go func() {
		var status [pgwire.HeaderLen + statusLen]byte
		for {
			if _, err := io.ReadFull(played, status[:]); err != nil {
				close(asked)
				return
			}
			asked <- status[len(status)-1]
		}
	}()
	if _, err := s.Receive(patient(t)); !errors.Is(err, ErrSilent) {
		t.Errorf("%v", err)
	}
	if _, err := s.Receive(patient(t)); !errors.Is(err, ErrSilent) {
		t.Errorf("again: %v", err)
	}
	_ = s.conn.Close()
	wanted := false
	for reply := range asked {
		wanted = wanted || reply == 1
	}
	if !wanted {
		t.Error("the server was not asked")
	}
}

// A server that answers is not silent, and neither is one from which the client does not read.
func TestStreamKeepsAQuietServer(t *testing.T) { synctest.Test(t, streamKeepsAQuietServer) }

func streamKeepsAQuietServer(t *testing.T) {
	const timeout = 100 * time.Millisecond
	s, played := piped(t, StreamConfig{StatusInterval: time.Hour, Timeout: timeout})
	go func() {
		var status [pgwire.HeaderLen + statusLen]byte
		for {
			if _, err := io.ReadFull(played, status[:]); err != nil {
				return
			}
			if status[len(status)-1] == 1 {
				_, _ = played.Write(keepalive(1, 0))
			}
		}
	}()
	for range 4 {
		if f, err := s.Receive(patient(t)); err != nil || !f.Keepalive() {
			t.Fatalf("%+v, %v", f, err)
		}
	}
}

func TestStreamRefusesWhatIsNone(t *testing.T) {
	for name, message := range map[string][]byte{
		"another message": pgwire.AppendParseComplete(nil),
		"an empty frame":  pgwire.AppendCopyData(nil, nil),
		"another frame":   pgwire.AppendCopyData(nil, []byte("x")),
		"a short frame":   pgwire.AppendCopyData(nil, []byte("w1234567")),
		"a long header":   {'d', 0xff, 0xff, 0xff, 0xff},
		"a short header":  {'d', 0, 0, 0, 3},
	} {
		t.Run(name, func(t *testing.T) {
			s, played := copyBoth(t, StreamConfig{})
			write(t, played, message)
			if _, err := s.Receive(patient(t)); !errors.Is(err, pgwire.ErrMalformed) {
				t.Errorf("%v", err)
			}
			if _, err := s.conn.Query(patient(t), "SHOW x"); !errors.Is(err, pgwire.ErrMalformed) {
				t.Errorf("the connection afterwards: %v", err)
			}
		})
	}
}

// The server's error ends the stream and not the connection.
func TestStreamEndsWithAnError(t *testing.T) {
	s, played := copyBoth(t, StreamConfig{})
	write(t, played, pgwire.AppendError(nil, pgwire.NewError("58P01", "requested WAL segment has already been removed")), pgwire.AppendReadyForQuery(nil, 'I'))
	if _, err := s.Receive(patient(t)); pgwire.CodeOf(err) != "58P01" {
		t.Errorf("%v", err)
	}
	if _, err := s.Receive(patient(t)); !errors.Is(err, io.EOF) {
		t.Errorf("again: %v", err)
	}
	if err := s.End(patient(t)); err != nil || s.conn.failed() != nil {
		t.Errorf("%v, %v", err, s.conn.failed())
	}
}

func TestInterruptedCommandBreaksTheConnection(t *testing.T) {
	c, played := scripted(t)
	ctx, cancel := context.WithCancel(patient(t))
	done := make(chan error, 1)
	go func() {
		_, err := c.Query(ctx, "SHOW x")
		done <- err
	}()
	readMessage(t, played)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := c.Query(patient(t), "SHOW y"); !errors.Is(err, context.Canceled) {
		t.Errorf("afterwards: %v", err)
	}
}

// Messages of all lengths come whole and in order, however the network cuts
// them, and the buffer goes back to its size after the long ones.
func TestMessagesOfAllLengths(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 6*bufferSize)
	for i := range noise {
		noise[i] = byte(i * i >> 7)
	}
	var sent [][]byte
	var stream []byte
	for i := range 300 {
		n := rnd.IntN(2000)
		switch {
		case i%50 == 49:
			n = rnd.IntN(5 * bufferSize)
		case i%10 == 9:
			n = bufferSize - pgwire.HeaderLen + rnd.IntN(3) - 1
		}
		body := noise[rnd.IntN(bufferSize):][:n]
		sent = append(sent, body)
		stream = pgwire.AppendMessage(stream, pgwire.ServerCopyData, body)
	}
	for _, cut := range []int{997, 1 << 16, 1 << 30} {
		c := newConn(&pgwire.Backend{Conn: &tape{rest: stream, cut: cut}}, Logical, 150000)
		for i, want := range sent {
			typ, body, err := c.next(t.Context())
			if err != nil || typ != pgwire.ServerCopyData || !bytes.Equal(body, want) {
				t.Fatalf("cut at %d: message %d of %d bytes comes as %d bytes, %v", cut, i, len(want), len(body), err)
			}
			if len(c.buf) > max(bufferSize, 2*(len(want)+pgwire.HeaderLen)) && i%50 > 2 {
				t.Fatalf("cut at %d: buffer of %d bytes after message %d of %d", cut, len(c.buf), i, len(want))
			}
		}
		if _, _, err := c.next(t.Context()); err == nil {
			t.Error("a message more than was sent")
		}
		_ = c.Close()
	}
}
