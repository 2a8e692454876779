package mywire

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// event is one event that a walk reports, with what was known at that time.
type event struct {
	Event  Event
	At     int // bytes of the answer so far
	Rows   uint64
	Code   uint16
	Status Status
	ID     uint64
	Count  uint64
	Warn   uint16
	Info   string
	State  string
	Stmt   Prepared
	Asked  string
}

func (a *Answer) snapshot(e Event, at int) event {
	ok := a.OK()
	return event{
		e, at, a.Rows(), a.ErrorCode(), ok.Status, ok.LastInsertID, ok.AffectedRows, ok.Warnings,
		string(ok.Info), string(ok.State), a.Prepared(), string(a.request),
	}
}

// walk feeds stream to an Answer in pieces that end at the given offsets, and returns the
// events. It answers requests for data with one packet.
func walk(command byte, caps Caps, stream []byte, cuts ...int) (events []event, end int, err error) {
	var a Answer
	a.Reset(command, caps)
	at := 0
	for _, cut := range append(cuts, len(stream)) {
		for at < cut {
			// Each piece has its own memory, which is overwritten afterwards: the Answer must
			// copy what it needs later.
			piece := bytes.Clone(stream[at:cut])
			n, e, err := a.Feed(piece)
			at += n
			if err != nil {
				return events, at, err
			}
			if e != EventMore {
				events = append(events, a.snapshot(e, at))
			}
			clear(piece)
			switch e {
			case EventDone:
				return events, at, nil
			case EventMore:
				if n != len(piece) {
					return events, at, fmt.Errorf("EventMore after %d of %d bytes", n, len(piece))
				}
			case EventInfile, EventAuth:
				if at < len(stream) {
					a.Resume(stream[min(at+3, len(stream)-1)])
				}
			}
		}
	}
	return events, at, nil
}

// oracle does the same as Answer, slowly: it needs the whole stream, splits it into messages
// first, and then reads them as a client does.
type oracle struct {
	caps    Caps
	command byte
	left    []byte
	at      int
	seq     byte
	rows    uint64
	ok      OK
	stmt    Prepared
	events  []event
}

var errShort = errors.New("stream ends inside the answer")

func (o *oracle) next() ([]byte, error) {
	n, whole := Message(o.left)
	if !whole || n > len(o.left) {
		return nil, errShort
	}
	_, first, _ := Peek(o.left)
	payload, next, err := Payload(o.left[:n])
	if err != nil {
		return nil, err
	}
	if len(payload) == 0 && o.command != ComStatistics {
		return nil, ErrMalformed
	}
	if first != o.seq && (len(payload) == 0 || payload[0] != headerError) {
		return nil, ErrMalformed
	}
	o.seq = next
	o.left, o.at = o.left[n:], o.at+n
	if len(payload) > 0 && payload[0] == headerError {
		if len(payload) >= MaxPayload || len(payload) < 3 {
			return nil, ErrMalformed
		}
		if o.caps.Has(CapProgress) && IsProgress(payload) {
			return o.next()
		}
	}
	return payload, nil
}

func (o *oracle) tell(e Event, code uint16, asked string) {
	o.events = append(o.events, event{
		e, o.at, o.rows, code, o.ok.Status, o.ok.LastInsertID, o.ok.AffectedRows, o.ok.Warnings,
		string(o.ok.Info), string(o.ok.State), o.stmt, asked,
	})
	o.ok.Info, o.ok.State = nil, nil
}

// run reads one answer and records its events.
func (o *oracle) run() error {
	o.seq = 1
	switch o.command {
	case ComQuery, ComStmtExecute, ComStmtBulkExecute, ComProcessInfo:
		return o.results()
	case ComStmtPrepare:
		return o.prepare()
	case ComStmtFetch, ComFieldList, ComBinlogDump, ComBinlogDumpGTID, ComTableDump:
		_, err := o.rowsUntilEnd()
		return err
	case ComQuit, ComStmtClose, ComStmtSendLongData:
		return nil
	case ComChangeUser:
		return o.login()
	}
	payload, err := o.next()
	if err != nil {
		return err
	}
	if o.failed(payload) {
		return nil
	}
	if o.command != ComStatistics {
		if err := o.finish(payload); err != nil {
			return err
		}
	}
	o.tell(EventDone, 0, "")
	return nil
}

func (o *oracle) failed(payload []byte) bool {
	if len(payload) > 0 && payload[0] == headerError {
		o.tell(EventDone, ErrorCode(payload), "")
		return true
	}
	return false
}

func (o *oracle) finish(payload []byte) (err error) {
	if len(payload) >= MaxPayload {
		return ErrMalformed
	}
	if IsEOF(payload) {
		o.ok = OK{}
		o.ok.Warnings, o.ok.Status, err = ParseEOF(payload)
		return err
	}
	o.ok, err = ParseOK(payload, o.caps)
	return err
}

func (o *oracle) results() error {
	for {
		payload, err := o.next()
		if err != nil {
			return err
		}
		if len(payload) >= MaxPayload {
			return ErrMalformed
		}
		switch {
		case o.failed(payload):
			return nil
		case payload[0] == headerInfile && (o.command == ComQuery || o.command == ComStmtExecute):
			o.tell(EventInfile, 0, string(payload))
			if len(o.left) > 0 {
				o.seq = o.left[min(3, len(o.left)-1)]
			}
			continue
		case payload[0] == headerOK:
			if err := o.finish(payload); err != nil {
				return err
			}
		default:
			n, rest, ok := ParseLenenc(payload)
			if !ok || n == 0 || n > maxParams || len(rest) > 0 {
				return ErrMalformed
			}
			failed, err := o.columns(int(n))
			if failed || err != nil {
				return err
			}
		}
		if o.ok.Status&StatusMoreResults == 0 || o.command == ComProcessInfo {
			o.tell(EventDone, 0, "")
			return nil
		}
		o.tell(EventResult, 0, "")
	}
}

// columns reads a result from its column definitions on.
func (o *oracle) columns(n int) (failed bool, err error) {
	for range n {
		payload, err := o.next()
		if err != nil || o.failed(payload) {
			return true, err
		}
	}
	if !o.caps.Has(CapDeprecateEOF) {
		payload, err := o.next()
		if err != nil || o.failed(payload) {
			return true, err
		}
		if !IsEOF(payload) {
			return true, ErrMalformed
		}
		if _, status, _ := ParseEOF(payload); o.command == ComStmtExecute && status&StatusCursorExists != 0 {
			return false, o.finish(payload)
		}
	}
	for {
		payload, err := o.next()
		if err != nil || o.failed(payload) {
			return true, err
		}
		if payload[0] == headerEOF && (len(payload) < 9 || o.caps.Has(CapDeprecateEOF)) && len(payload) < MaxPayload {
			return false, o.finish(payload)
		}
		o.rows++
	}
}

func (o *oracle) rowsUntilEnd() (bool, error) {
	for {
		payload, err := o.next()
		if err != nil {
			return false, err
		}
		if o.failed(payload) {
			return true, nil
		}
		if payload[0] == headerEOF && (len(payload) < 9 || o.caps.Has(CapDeprecateEOF)) && len(payload) < MaxPayload {
			if err := o.finish(payload); err != nil {
				return false, err
			}
			o.tell(EventDone, 0, "")
			return false, nil
		}
		o.rows++
	}
}

func (o *oracle) prepare() error {
	payload, err := o.next()
	if err != nil {
		return err
	}
	if o.failed(payload) {
		return nil
	}
	if len(payload) >= MaxPayload {
		return ErrMalformed
	}
	if o.stmt, err = ParsePrepared(payload); err != nil {
		return err
	}
	o.ok = OK{Warnings: o.stmt.Warnings}
	for _, n := range []uint16{o.stmt.Params, o.stmt.Columns} {
		if n == 0 {
			continue
		}
		for i := range n {
			payload, err := o.next()
			if err != nil {
				return err
			}
			if o.failed(payload) {
				return nil
			}
			if i == n-1 && len(payload) >= MaxPayload {
				return ErrMalformed
			}
		}
		if o.caps.Has(CapDeprecateEOF) {
			continue
		}
		payload, err := o.next()
		if err != nil {
			return err
		}
		if o.failed(payload) {
			return nil
		}
		if !IsEOF(payload) {
			return ErrMalformed
		}
		if err := o.finish(payload); err != nil {
			return err
		}
	}
	o.tell(EventDone, 0, "")
	return nil
}

func (o *oracle) login() error {
	for {
		payload, err := o.next()
		if err != nil {
			return err
		}
		if len(payload) >= MaxPayload {
			return ErrMalformed
		}
		switch {
		case o.failed(payload):
			return nil
		case payload[0] == headerOK:
			if err := o.finish(payload); err != nil {
				return err
			}
			o.tell(EventDone, 0, "")
			return nil
		case bytes.Equal(payload, []byte{headerAuthMore, authFastDone}):
		case payload[0] == headerEOF || payload[0] == headerAuthMore:
			o.tell(EventAuth, 0, string(payload))
			if len(o.left) > 0 {
				o.seq = o.left[min(3, len(o.left)-1)]
			}
		default:
			return ErrMalformed
		}
	}
}

// agree checks that an Answer, fed in pieces at the given cuts, reports the same events as the
// oracle.
func agree(t *testing.T, command byte, caps Caps, stream []byte, cuts ...int) {
	t.Helper()
	o := &oracle{caps: caps, command: command, left: stream}
	wantErr := o.run()
	events, end, err := walk(command, caps, stream, cuts...)
	switch {
	case errors.Is(wantErr, ErrMalformed):
		if err == nil && len(events) > 0 && events[len(events)-1].Event == EventDone {
			t.Fatalf("command %#02x: %+v, want an error\n%x", command, events, stream)
		}
		return // how far a broken stream is read before the error is unspecified
	case errors.Is(wantErr, errShort):
		if err == nil && len(events) > 0 && events[len(events)-1].Event == EventDone {
			t.Fatalf("command %#02x: done with %+v, and the stream is cut\n%x", command, events, stream)
		}
	case err != nil:
		t.Fatalf("command %#02x: %v\n%x", command, err, stream)
	case end != o.at:
		t.Fatalf("command %#02x: ends at %d, want %d\n%x", command, end, o.at, stream)
	}
	if err == nil && !slices.Equal(events, o.events) {
		t.Fatalf("command %#02x, cuts %v:\n got %+v\nwant %+v\n%x", command, cuts, events, o.events, stream)
	}
}

// agreeCut is agree for the stream as a whole, byte by byte, cut once anywhere,
// and cut at random.
func agreeCut(t *testing.T, command byte, caps Caps, stream []byte) {
	t.Helper()
	agree(t, command, caps, stream)
	if len(stream) < 1<<12 {
		all := make([]int, len(stream))
		for i := range stream {
			all[i] = i
			agree(t, command, caps, stream, i)
		}
		agree(t, command, caps, stream, all...)
	}
	rng := rand.New(rand.NewPCG(1, uint64(len(stream))))
	for range 20 {
		var cuts []int
		for at := 0; at < len(stream); at += 1 + rng.IntN(1+len(stream)/3) {
			cuts = append(cuts, at)
		}
		agree(t, command, caps, stream, cuts...)
	}
}

// answers builds, packet by packet, what a server may send.
type answers struct {
	caps Caps
	seq  byte
	b    []byte
}

func (s *answers) packet(payload string) *answers {
	s.b = AppendPacket(s.b, s.seq, []byte(payload))
	_, last, _ := Peek(s.b[len(s.b)-len(payload)%MaxPayload-HeaderLen:])
	s.seq = last + 1
	return s
}

func (s *answers) columns(n int) *answers {
	s.b, s.seq = AppendColumnCount(s.b, s.seq, n), s.seq+1
	s.definitions(n)
	return s
}

func (s *answers) definitions(n int) *answers {
	for range n {
		s.b, s.seq = AppendColumn(s.b, s.seq, s.caps, &Column{Name: []byte("c"), Type: TypeLong}), s.seq+1
	}
	if !s.caps.Has(CapDeprecateEOF) && n > 0 {
		s.eof(StatusAutocommit)
	}
	return s
}

func (s *answers) eof(status Status) *answers {
	s.b, s.seq = AppendEOF(s.b, s.seq, 0, status), s.seq+1
	return s
}

func (s *answers) end(status Status) *answers {
	s.b, s.seq = AppendEnd(s.b, s.seq, s.caps, &OK{Status: status, Warnings: 2}), s.seq+1
	return s
}

func (s *answers) ok(ok OK) *answers {
	s.b, s.seq = AppendOK(s.b, s.seq, s.caps, &ok), s.seq+1
	return s
}

func (s *answers) fail(code uint16) *answers {
	s.b, s.seq = AppendError(s.b, s.seq, NewError(code, "no")), s.seq+1
	return s
}

func (s *answers) prepared(params, columns int) *answers {
	s.b, s.seq = AppendPrepared(s.b, s.seq, Prepared{StmtID: 7, Params: uint16(params), Columns: uint16(columns), Warnings: 1}), s.seq+1
	return s.definitions(params).definitions(columns)
}

// scripted returns answers of every kind.
func scripted(caps Caps) map[string]struct {
	command byte
	stream  []byte
} {
	out := map[string]struct {
		command byte
		stream  []byte
	}{}
	add := func(name string, command byte, build func(s *answers)) {
		s := &answers{caps: caps, seq: 1}
		build(s)
		out[name] = struct {
			command byte
			stream  []byte
		}{command, s.b}
	}
	state := AppendChange(nil, Change{Kind: TrackSchema, Value: []byte("db")})
	add("ok", ComQuery, func(s *answers) {
		s.ok(OK{AffectedRows: 3, LastInsertID: 1 << 40, Status: StatusAutocommit, Warnings: 9, Info: []byte("Rows matched: 3"), State: state})
	})
	add("error", ComQuery, func(s *answers) { s.fail(ErrSyntax) })
	add("rows", ComQuery, func(s *answers) {
		s.columns(2).packet("\x01a\x01b").packet("\xfb\x00").packet("\x00\x00").end(StatusAutocommit)
	})
	add("no rows", ComQuery, func(s *answers) { s.columns(1).end(StatusInTrans) })
	add("error in rows", ComQuery, func(s *answers) { s.columns(1).packet("\x01a").fail(ErrQueryInterrupted) })
	add("several results", ComQuery, func(s *answers) {
		s.ok(OK{Status: StatusMoreResults, AffectedRows: 1, Info: []byte("first"), State: state}).columns(1).packet("\x01x").end(StatusMoreResults).columns(3).end(StatusMoreResults).ok(OK{LastInsertID: 4})
	})
	add("several results, then an error", ComQuery, func(s *answers) { s.columns(1).end(StatusMoreResults).fail(ErrDuplicateKey) })
	add("row that begins like an end", ComQuery, func(s *answers) {
		if !caps.Has(CapDeprecateEOF) {
			s.columns(1).packet("\xfe\x05\x00\x00\x00\x00\x00\x00\x00hello").end(0)
		} else {
			s.columns(1).end(0)
		}
	})
	add("infile", ComQuery, func(s *answers) { s.packet("\xfb/etc/passwd"); s.seq = 9; s.ok(OK{AffectedRows: 1}) })
	add("cursor", ComStmtExecute, func(s *answers) {
		if caps.Has(CapDeprecateEOF) {
			s.columns(2).end(StatusCursorExists)
			return
		}
		s.b, s.seq = AppendColumnCount(s.b, s.seq, 1), s.seq+1
		s.b, s.seq = AppendColumn(s.b, s.seq, s.caps, &Column{}), s.seq+1
		s.eof(StatusCursorExists)
	})
	add("fetch", ComStmtFetch, func(s *answers) { s.packet("\x00\x00row").packet("\x00\x00row").end(StatusLastRowSent) })
	add("fields", ComFieldList, func(s *answers) { s.definitions(0).packet("\x03def...").packet("\x03def").end(0) })
	add("statistics", ComStatistics, func(s *answers) { s.packet("Uptime: 3") })
	add("no statistics", ComStatistics, func(s *answers) { s.packet("") })
	add("ping", ComPing, func(s *answers) { s.ok(OK{}) })
	add("set option", ComSetOption, func(s *answers) { s.end(0) })
	add("close", ComStmtClose, func(*answers) {})
	for _, n := range [][2]int{{0, 0}, {0, 2}, {2, 0}, {1, 3}} {
		add(fmt.Sprintf("prepare %v", n), ComStmtPrepare, func(s *answers) { s.prepared(n[0], n[1]) })
	}
	add("prepare fails", ComStmtPrepare, func(s *answers) { s.fail(ErrNoSuchTable) })
	add("change user", ComChangeUser, func(s *answers) {
		s.packet("\xfe" + PluginSHA2 + "\x0012345678901234567890\x00")
		s.seq = 3
		s.packet("\x01\x04")
		s.seq = 5
		s.packet("\x01\x03").ok(OK{})
	})
	if caps.Has(CapProgress) {
		add("progress", ComQuery, func(s *answers) { s.packet("\xff\xff\xff\x01..").packet("\xff\xff\xff\x01..").ok(OK{}) })
	}
	return out
}

var walkedCaps = []Caps{
	CapsRequired,
	CapsRequired | CapDeprecateEOF,
	CapsRequired | CapSessionTrack,
	CapsRequired | CapDeprecateEOF | CapSessionTrack | CapProgress | CapExtendedMetadata,
}

func TestAnswerWalksEveryKind(t *testing.T) {
	for _, caps := range walkedCaps {
		for name, s := range scripted(caps) {
			t.Run(fmt.Sprintf("%#x/%s", caps, name), func(t *testing.T) {
				agreeCut(t, s.command, caps, s.stream)
				// It ends with its own last byte, whatever follows.
				_, end, err := walk(s.command, caps, append(bytes.Clone(s.stream), s.stream...))
				if err != nil || end != len(s.stream) {
					t.Errorf("followed by another answer: ends at %d of %d, %v", end, len(s.stream), err)
				}
			})
		}
	}
}

func TestAnswerWalksPacketsOf16MiB(t *testing.T) {
	for _, caps := range walkedCaps[:2] {
		s := &answers{caps: caps, seq: 1}
		s.columns(1)
		for _, size := range []int{MaxPayload - 1, MaxPayload, MaxPayload + 1} {
			row := make([]byte, size)
			row[0] = headerEOF // as the length of a value of 16 MiB
			if size > MaxPayload {
				row[MaxPayload] = headerError // in the continuation, where it says nothing
			}
			if size < MaxPayload {
				row[0] = 0xfd
			}
			s.packet(string(row))
		}
		s.end(StatusAutocommit)
		var a Answer
		for at := 0; at < len(s.b); {
			length, _, _ := Peek(s.b[at:])
			for cut := max(at-1, 0); cut < at+7 && cut < len(s.b); cut++ {
				a.Reset(ComQuery, caps)
				n, e, err := a.Feed(s.b[:cut])
				if n != cut || e != EventMore || err != nil {
					t.Fatalf("up to %d: %d, %d, %v", cut, n, e, err)
				}
				if n, e, err = a.Feed(s.b[cut:]); cut+n != len(s.b) || e != EventDone || err != nil {
					t.Fatalf("cut at %d: ends at %d of %d, %d: %v", cut, cut+n, len(s.b), e, err)
				}
				if a.Rows() != 3 {
					t.Fatalf("cut at %d: %d rows, want 3", cut, a.Rows())
				}
			}
			at += HeaderLen + length
		}
	}
}

func TestAnswerRefusesNonsense(t *testing.T) {
	for name, c := range map[string]struct {
		command byte
		stream  []byte
	}{
		"wrong number":        {ComPing, AppendOK(nil, 2, CapsRequired, &OK{})},
		"a column too many":   {ComQuery, append(AppendColumnCount(nil, 1, 1), AppendPacket(nil, 3, []byte("x"))...)},
		"no columns":          {ComQuery, AppendPacket(nil, 1, []byte{0xfc, 0, 0})},
		"empty packet":        {ComQuery, AppendPacket(nil, 1, nil)},
		"short OK":            {ComQuery, AppendPacket(nil, 1, []byte{0, 0})},
		"short ERR":           {ComQuery, AppendPacket(nil, 1, []byte{0xff})},
		"16 MiB of OK":        {ComQuery, append(AppendHeader(nil, MaxPayload, 1), 0)},
		"infile for a ping":   {ComPing, AppendPacket(nil, 1, []byte("\xfbf"))},
		"rows without an EOF": {ComQuery, append(append(AppendColumnCount(nil, 1, 1), AppendColumn(nil, 2, 0, &Column{})...), AppendTextRow(nil, 3, [][]byte{nil})...)},
	} {
		if _, _, err := walk(c.command, CapsRequired, c.stream); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnswerTakesAnOlderError(t *testing.T) {
	events, _, err := walk(ComQuery, CapsRequired, AppendError(nil, 0, NewError(ErrInteractionTimeout, "too late")))
	if err != nil || len(events) != 1 || events[0].Code != ErrInteractionTimeout {
		t.Errorf("%+v, %v", events, err)
	}
}

func TestAnswerAllocatesNothing(t *testing.T) {
	caps := WantedCaps
	s := &answers{caps: caps, seq: 1}
	s.columns(4)
	for range 100 {
		s.packet("\x03abc\x03abc\x03abc\x03abc")
	}
	s.end(StatusAutocommit)
	var a Answer
	for _, piece := range []int{len(s.b), 1000, 7} {
		n := testing.AllocsPerRun(20, func() {
			a.Reset(ComQuery, caps)
			for at := 0; at < len(s.b); at += piece {
				if _, _, err := a.Feed(s.b[at:min(at+piece, len(s.b))]); err != nil {
					t.Fatal(err)
				}
			}
		})
		if n != 0 {
			t.Errorf("%v allocations in pieces of %d bytes", n, piece)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	for i, caps := range walkedCaps {
		for _, s := range scripted(caps) {
			f.Add(s.stream, s.command, uint8(i), uint16(3), uint16(11))
		}
	}
	f.Fuzz(func(t *testing.T, stream []byte, command byte, caps uint8, cut1, cut2 uint16) {
		if !HasAnswer(command) {
			return
		}
		c := walkedCaps[int(caps)%len(walkedCaps)]
		cuts := []int{min(int(cut1), len(stream)), min(int(cut2), len(stream))}
		slices.Sort(cuts)
		agree(t, command, c, stream, cuts...)
	})
}

// BenchmarkAnswerRows measures the walk over rows, per packet.
func BenchmarkAnswerRows(b *testing.B) {
	s := &answers{caps: WantedCaps, seq: 1}
	s.columns(4)
	const rows = 200
	for range rows {
		s.packet("\x03abc\x03abc\x03abc\x03abc")
	}
	s.end(StatusAutocommit)
	var a Answer
	for range b.N {
		a.Reset(ComQuery, WantedCaps)
		if _, e, err := a.Feed(s.b); e != EventDone || err != nil {
			b.Fatal(e, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(rows+6), "ns/packet")
}

// BenchmarkAnswerOK measures the shortest answer of all.
func BenchmarkAnswerOK(b *testing.B) {
	ok := AppendOK(nil, 1, WantedCaps, &OK{AffectedRows: 1, LastInsertID: 77, Status: StatusAutocommit})
	var a Answer
	for range b.N {
		a.Reset(ComQuery, WantedCaps)
		if _, e, err := a.Feed(ok); e != EventDone || err != nil {
			b.Fatal(e, err)
		}
	}
}
