package mysql_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/proxy/mysql"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file compares sessions through weir with direct ones, packet by packet.

var (
	diffSeed  = flag.Uint64("diff.seed", 0, "seed of TestAnswersEqualThoseOfADirectConnection; 0: a few fixed ones")
	diffSteps = flag.Int("diff.steps", 150, "steps of each script of TestAnswersEqualThoseOfADirectConnection")
)

// A diffStep is what a client sends at once, and what it then waits for.
type diffStep struct {
	text  string
	parts []diffPart
}

// A diffPart is one command of a step.
type diffPart struct {
	cmd byte
	// message makes the command's packets; nil of it means that the session
	// cannot send it, and sends nothing.
	message func(s *diffSession) []byte
	slot    int       // COM_STMT_PREPARE: where its number is kept, from 1 on
	file    [][]byte  // packets of the file that the server may ask for, before the empty one
	whom    *diffUser // COM_CHANGE_USER
}

// A diffUser is the user that a session changes to, and the suffix of the database's name.
type diffUser struct{ name, password, where string }

func (u *diffUser) database(s *diffSession) string { return strings.TrimSuffix(s.other, "x") + u.where }

// A diffSession is one side's session.
type diffSession struct {
	*wire
	rig   *diffRig
	other string // of two databases, that of this side
	db    string // current, as the server has told last
	slots map[int]*diffSlot

	preparing string
}

// A diffSlot is what a client knows of a statement that it has prepared.
type diffSlot struct {
	id     uint32
	params int
	sql    string
	kinds  []byte // of the parameters sent last; nil: never executed
}

// A diffAnswer is the packets that came in answer to a step, without what
// depends on the connection. A nil packet stands for the connection's end.
type diffAnswer [][]byte

// A diffRig is a server, a proxy in front of it, and two databases whose names
// have the same length: one for direct sessions, one for those through weir.
type diffRig struct {
	server          *lab.MySQL
	weir            *weir
	direct, through string

	compared atomic.Int64 // answers that were equal
}

// diffDatabase is what both databases are called in answers.
const diffDatabase = "database_"

var diffSerial = make(chan int, 1)

func init() { diffSerial <- 0 }

// newDiffRig makes databases for tb. Beside each there is one with an x behind
// its name.
func newDiffRig(tb testing.TB, server *lab.MySQL, change func(*mysql.Config)) *diffRig {
	tb.Helper()
	n := <-diffSerial + 1
	diffSerial <- n
	r := &diffRig{server: server, direct: fmt.Sprintf("direct%03d", n), through: fmt.Sprintf("throug%03d", n)}
	for _, name := range []string{r.direct, r.through, r.direct + "x", r.through + "x"} {
		sqlOn(tb, server, "CREATE DATABASE "+name)
		tb.Cleanup(func() { dropDatabase(tb, server, name) })
	}
	r.weir = startFor(tb, server, r.through, change)
	return r
}

// session opens a session on one side with the capabilities caps, as far as weir
// offers them, so that both sides agree to the same.
func (r *diffRig) session(tb testing.TB, through bool, caps mywire.Caps) (*diffSession, error) {
	tb.Helper()
	offered := r.weir.offers(tb)
	change := func(c *mywire.ConnectConfig) {
		c.Caps = caps & offered
		if !caps.Has(mywire.CapLongPassword) {
			c.Caps &^= mywire.CapLongPassword
		}
		c.Charset = byte(r.charset())
		c.Database = r.through
		if !through {
			c.Address, c.Database = r.server.Addr(), r.direct
		}
	}
	w := r.weir.within(tb)
	conn, err := w.tryDial(change)
	if err != nil {
		return nil, err
	}
	db := r.through
	if !through {
		db = r.direct
	}
	if err := conn.Conn.SetDeadline(time.Now().Add(patience / 2)); err != nil {
		return nil, err
	}
	return &diffSession{wire: conn, rig: r, other: db + "x", db: db, slots: make(map[int]*diffSlot)}, nil
}

// charset returns the server's own, because a reset does not restore that of the login.
func (r *diffRig) charset() uint16 {
	if isMariaDB(r.server) {
		return mywire.CharsetUTF8MB4
	}
	return mywire.CharsetUTF8900
}

// offers returns the capabilities that weir offers.
func (w *weir) offers(tb testing.TB) mywire.Caps {
	tb.Helper()
	p, err := mywire.Dial(ctxFor(tb), mywire.ConnectConfig{Address: w.Addr().String(), TLSMode: mywire.TLSDisabled, Timeout: patience})
	if err != nil {
		tb.Fatalf("dial: %v", err)
	}
	p.GiveUp()
	return p.Greeting.Caps
}

// run sends a step and collects the answers.
func (s *diffSession) run(x diffStep) (diffAnswer, error) {
	var out []byte
	sent := make([][]byte, len(x.parts))
	for i, p := range x.parts {
		sent[i] = p.message(s)
		out = append(out, sent[i]...)
	}
	wrote := make(chan error, 1)
	go func() { // the server may answer, or stop reading, before it has all
		_, err := s.Conn.Write(out)
		wrote <- err
	}()
	var got diffAnswer
	var err error
	for i, p := range x.parts {
		if sent[i] == nil || !mywire.HasAnswer(p.cmd) {
			continue
		}
		if got, err = s.answer(got, p, sent[i]); err != nil {
			break
		}
	}
	werr := <-wrote
	if err == nil && len(got) > 0 && got[len(got)-1] == nil {
		return got, nil
	}
	return got, errors.Join(err, werr)
}

// answer reads the answer to one command.
func (s *diffSession) answer(got diffAnswer, p diffPart, sent []byte) (diffAnswer, error) {
	if p.whom != nil {
		return s.changedUser(got, p)
	}
	var a mywire.Answer
	a.Reset(p.cmd, s.Caps)
	a.Resume(mywire.NextSeq(sent))
	for first := true; ; first = false {
		seq, payload, err := s.tryPacket()
		if err != nil {
			if timeout := (interface{ Timeout() bool })(nil); errors.As(err, &timeout) && timeout.Timeout() {
				return got, fmt.Errorf("no answer: %w", err)
			}
			return append(got, nil), nil // an end of the session may be the answer
		}
		_, event, err := a.Feed(mywire.AppendHeader(nil, len(payload), seq))
		if err == nil && len(payload) > 0 {
			_, event, err = a.Feed(payload)
		}
		if err != nil {
			return got, fmt.Errorf("answer to command %#02x, packet %d %.80q: %w", p.cmd, seq, payload, err)
		}
		if p.slot > 0 && first && mywire.IsOK(payload) {
			m, err := mywire.ParsePrepared(payload)
			if err != nil {
				return got, err
			}
			s.slots[p.slot] = &diffSlot{id: m.StmtID, params: int(m.Params), sql: s.preparing}
			binary.LittleEndian.PutUint32(payload[1:], 0)
		}
		if event == mywire.EventResult || event == mywire.EventDone {
			payload = s.normalEnd(payload)
			mywire.ClearStatus(payload, s.Caps, planFlags)
		}
		got = append(got, s.normal(p.cmd, seq, payload))
		switch event {
		case mywire.EventDone:
			return got, nil
		case mywire.EventInfile:
			if seq, err = s.sendFile(seq+1, p.file); err != nil {
				return got, err
			}
			a.Resume(seq)
		case mywire.EventAuth:
			return got, errors.New("asked to authenticate")
		}
	}
}

// sendFile sends a file's packets and the empty one that ends them.
func (s *diffSession) sendFile(seq byte, file [][]byte) (next byte, err error) {
	var out []byte
	for _, p := range append(slices.Clip(file), nil) {
		out = append(mywire.AppendHeader(out, len(p), seq), p...)
		seq++
	}
	_, err = s.Conn.Write(out)
	return seq, err
}

// changedUser answers the server's requests after COM_CHANGE_USER. The plugin, and with it the
// number of packets, may differ: only the outcome is compared.
func (s *diffSession) changedUser(got diffAnswer, p diffPart) (diffAnswer, error) {
	for {
		seq, payload, err := s.tryPacket()
		if err != nil {
			return append(got, nil), nil
		}
		switch {
		case mywire.IsOK(payload), mywire.IsError(payload):
			clear(s.slots)
			s.db = p.whom.database(s)
			return append(got, s.normal(p.cmd, 0, s.normalEnd(payload))), nil
		case len(payload) == 2 && payload[0] == 1:
			continue // fast path
		}
		plugin, salt, err := mywire.ParseAuthSwitch(payload)
		if err != nil {
			return got, err
		}
		var proof []byte
		if plugin == mywire.PluginNative {
			proof = nativeProof(p.whom.password, salt)
		}
		if _, err := s.Conn.Write(mywire.AppendPacket(nil, seq+1, proof)); err != nil {
			return append(got, nil), nil
		}
	}
}

// diffParameter matches MariaDB's error about a procedure's parameter, which names a row of an
// earlier statement.
var diffParameter = regexp.MustCompile("(for column (?:``.``.`amount`|'amount') at row )\\d+")

// planFlags describe a statement's plan, which depends on how often it was executed.
const planFlags = mywire.StatusNoGoodIndexUsed | mywire.StatusNoIndexUsed | mywire.StatusQueryWasSlow

var diffNumber = regexp.MustCompile(`\(\d+\)`)

// normal returns a packet without what depends on the connection: names of databases, numbers of
// statements, statistics of the server.
func (s *diffSession) normal(cmd, seq byte, payload []byte) []byte {
	if cmd == mywire.ComPing || cmd == mywire.ComInitDB {
		if ok, err := mywire.ParseOK(payload, s.Caps); err == nil && ok.Warnings > 0 {
			ok.Warnings = 0 // MySQL sends the count of the statement before
			payload = mywire.AppendOK(nil, 0, s.Caps, &ok)[mywire.HeaderLen:]
		}
	}
	if cmd == mywire.ComStatistics && !mywire.IsError(payload) {
		payload = []byte("statistics")
	}
	if cmd == mywire.ComSetOption && mywire.IsEOF(payload) {
		payload = mywire.AppendEOF(nil, 0, 0, s.statusOf(payload))[mywire.HeaderLen:] // as above
	}
	if mywire.IsEOF(payload) {
		// Between columns and rows the server may report that the state has changed, but not
		// how; through weir, settings that are not reported to clients cause that, too.
		mywire.ClearStatus(payload, s.Caps, mywire.StatusSessionState|planFlags)
	}
	if len(payload) > 1<<20 {
		return append([]byte{seq}, payload...) // a row without names
	}
	payload = bytes.ReplaceAll(payload, []byte(s.rig.direct), []byte(diffDatabase))
	payload = bytes.ReplaceAll(payload, []byte(s.rig.through), []byte(diffDatabase))
	if mywire.IsError(payload) {
		payload = diffParameter.ReplaceAll(payload, []byte("${1}N"))
	}
	if mywire.ErrorCode(payload) == mywire.ErrUnknownStatement || mywire.ErrorCode(payload) == mywire.ErrNoCursor {
		payload = diffNumber.ReplaceAll(payload, []byte("(N)"))
	}
	return append([]byte{seq}, payload...)
}

// normalEnd returns a packet that ends a result, without reports of the current database if it
// has not changed: a query of information_schema, which may be weir's own, causes such reports.
// Reports that the client did not ask for, such as those of transactions, are dropped, too.
func (s *diffSession) normalEnd(payload []byte) []byte {
	ok, err := mywire.ParseOK(payload, s.Caps)
	if err != nil || ok.Status&mywire.StatusSessionState == 0 {
		return payload
	}
	var kept [][]byte
	for rest := ok.State; len(rest) > 0; {
		c, next, err := mywire.ParseChange(rest)
		if err != nil {
			return payload
		}
		if c.Kind == mywire.TrackSystemVariables && confuses(s.rig.server) {
			rest = next
			continue
		}
		if c.Kind <= mywire.TrackStateChange && string(c.Name) != "statement_id" && (c.Kind != mywire.TrackSchema || string(c.Value) != s.db) {
			kept = append(kept, rest[:len(rest)-len(next)])
		}
		if c.Kind == mywire.TrackSchema {
			s.db = string(c.Value)
		}
		rest = next
	}
	slices.SortFunc(kept, bytes.Compare) // the order is that of a hash table in the server
	ok.State = bytes.Join(kept, nil)
	first := payload[0]
	out := mywire.AppendOK(nil, 0, s.Caps, &ok)[mywire.HeaderLen:]
	out[0] = first
	return out
}

func (s *diffSession) statusOf(eof []byte) mywire.Status {
	_, status, _ := mywire.ParseEOF(eof) // it is one
	return status
}

// diffExcused reports whether weir has refused a question about the previous statement because
// its connection has served others since, as documented. Refused SELECTs and SHOWs change
// nothing that later steps depend on.
func diffExcused(through diffAnswer) bool {
	for _, p := range through {
		if p != nil && mywire.ErrorCode(p[1:]) == mywire.ErrNotSupportedYet && bytes.Contains(p, []byte("weir: ")) && bytes.Contains(p, []byte("was not kept")) {
			return true
		}
	}
	return false
}

func equalAnswers(a, b diffAnswer) bool {
	return slices.EqualFunc(a, b, func(x, y []byte) bool { return (x == nil) == (y == nil) && bytes.Equal(x, y) })
}

func (a diffAnswer) String() string {
	var b strings.Builder
	for i, p := range a {
		switch {
		case p == nil:
			b.WriteString(" | END")
		case i > 40:
		default:
			fmt.Fprintf(&b, " | %d %.220q", p[0], p[1:])
			if len(p) > 221 {
				fmt.Fprintf(&b, "... (%d bytes)", len(p)-1)
			}
		}
	}
	return b.String()
}

// A diffScript is one client's part.
type diffScript struct {
	setup []string // run directly in each side's database before a session begins
	caps  mywire.Caps
	steps []diffStep
}

// answers runs a script in a new session of one side.
func (r *diffRig) answers(tb testing.TB, through bool, s diffScript) ([]diffAnswer, error) {
	db := r.direct
	if through {
		db = r.through
	}
	sqlOn(tb, r.server, append([]string{"USE " + db}, s.setup...)...)
	session, err := r.session(tb, through, s.caps)
	if err != nil {
		return nil, err
	}
	defer func() { _ = session.Close() }()
	var all []diffAnswer
	for _, x := range s.steps {
		got, err := session.run(x)
		if err != nil {
			before := ""
			if n := len(all); n > 0 {
				before = fmt.Sprintf(" (%.300s%v)", s.steps[n-1].text, all[n-1])
			}
			return all, fmt.Errorf("through weir %v: %.300s: %w, after %v%s", through, x.text, err, got, before)
		}
		all = append(all, got)
		if len(got) > 0 && got[len(got)-1] == nil {
			break
		}
	}
	return all, nil
}

// firstDifference returns the index of the first step whose answers differ, -1
// if none do.
func (r *diffRig) firstDifference(tb testing.TB, s diffScript) (at, excused int, text string) {
	a, err := r.answers(tb, false, s)
	if err != nil {
		tb.Errorf("the script does not fit the server: %v", err)
		return -1, 0, ""
	}
	b, err := r.answers(tb, true, s)
	for i := range a {
		if i >= len(b) {
			return i, excused, fmt.Sprintf("direct%.3000v\n  weir %v", a[i], err)
		}
		if equalAnswers(a[i], b[i]) {
			r.compared.Add(1)
			continue
		}
		if diffExcused(b[i]) {
			if excused++; !strings.HasPrefix(s.steps[i].text, "S") {
				break // what was refused would have written: the rest cannot be compared
			}
			continue
		}
		return i, excused, fmt.Sprintf("direct%.3000v\n  weir%.3000v", a[i], b[i])
	}
	return -1, excused, ""
}

// difference runs a script on both sides and describes the first difference, by
// a short script that shows it.
func (r *diffRig) difference(tb testing.TB, s diffScript) (excused int, text string) {
	at, excused, text := r.firstDifference(tb, s)
	if at < 0 {
		return excused, ""
	}
	s.steps = s.steps[:at+1]
	enough := time.Now().Add(15 * time.Second)
	for size := len(s.steps) / 2; size > 0; size /= 2 {
		for from := 0; from+size < len(s.steps) && time.Now().Before(enough); {
			shorter := s
			shorter.steps = slices.Concat(s.steps[:from], s.steps[from+size:])
			if n, _, other := r.firstDifference(tb, shorter); n >= 0 {
				s.steps, text = shorter.steps[:n+1], other
			} else {
				from += size
			}
		}
	}
	var b strings.Builder
	for _, x := range s.steps {
		fmt.Fprintf(&b, "  %.500s\n", x.text)
	}
	return excused, fmt.Sprintf("capabilities %#x: after\n%s%s", uint64(s.caps), b.String(), text)
}

// diffClients run their scripts at the same time, each on its own tables, over fewer backends
// than there are clients. The scripts use the same texts except for the tables' names, so
// whatever leaks from one session to another shows as a difference.
const diffClients = 4

// TestAnswersEqualThoseOfADirectConnection runs random scripts on a direct
// connection and through the proxy and compares every packet byte for byte.
func TestAnswersEqualThoseOfADirectConnection(t *testing.T) {
	t.Parallel()
	seeds := []uint64{1}
	for seed := len(seeds); testkit.All() && seed < 30; seed++ {
		seeds = append(seeds, uint64(seed+1))
	}
	if *diffSeed != 0 {
		seeds = []uint64{*diffSeed}
	}
	onFlavors(t, func(t *testing.T, server *lab.MySQL) {
		for _, hints := range []bool{false, true} {
			for _, seed := range seeds {
				t.Run(fmt.Sprintf("seed %d hints %v", seed, hints), func(t *testing.T) {
					t.Parallel()
					compareScripts(t, server, seed, hints)
				})
			}
		}
	})
}

func compareScripts(t *testing.T, server *lab.MySQL, seed uint64, hints bool) {
	r := newDiffRig(t, server, func(c *mysql.Config) { c.PoolSize, c.LocalInfile = 3, true })
	type result struct {
		client, excused int
		text            string
	}
	results := make(chan result, diffClients)
	total := 0
	for i := range diffClients {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		g := &diffScripter{Rand: rng, client: i, hints: hints, mariadb: isMariaDB(server)}
		s := diffScript{setup: g.setup(), caps: g.caps(), steps: g.script(*diffSteps)}
		total += len(s.steps)
		go func() {
			excused, text := r.difference(t, s)
			results <- result{i, excused, text}
		}()
	}
	excused := 0
	for range diffClients {
		x := <-results
		excused += x.excused
		if x.text != "" {
			t.Errorf("client %d, %s", x.client, x.text)
		}
	}
	// weir must refuse only few answers.
	if compared := int(r.compared.Load()); excused > total/20 || !t.Failed() && compared < total/4 {
		t.Errorf("%d of %d steps are refused, %d are equal", excused, total, compared)
	}
	t.Logf("%d of %d steps are refused, %d are equal", excused, total, r.compared.Load())
}
