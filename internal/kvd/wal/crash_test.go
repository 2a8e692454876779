package wal_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/weirdb/weir/internal/kvd/wal"
	"github.com/weirdb/weir/internal/kvd/wal/waltest"
)

// state is what a replica must remember: a slow and obvious model of the log.
type state struct {
	base    wal.SnapshotInfo // entries up to it are gone
	entries []wal.Record     // from base.Index+1 on
	cells   map[string]string
}

func (s *state) clone() *state {
	return &state{base: s.base, entries: slices.Clone(s.entries), cells: maps.Clone(s.cells)}
}

func (s *state) last() (index, term uint64) {
	if n := len(s.entries); n > 0 {
		return s.entries[n-1].Index, s.entries[n-1].Term
	}
	return s.base.Index, s.base.Term
}

// from returns what is left of the state after a snapshot.
func (s *state) from(snap wal.SnapshotInfo) *state {
	c := &state{base: snap, cells: s.cells}
	for i, e := range s.entries {
		if e.Index == snap.Index && e.Term == snap.Term {
			c.entries = s.entries[i+1:]
		}
	}
	if snap.Index == s.base.Index && snap.Term == s.base.Term {
		c.entries = s.entries
	}
	return c
}

// do applies a record.
func (s *state) do(r wal.Record) {
	switch r.Kind {
	case wal.Entry:
		s.entries = append(slices.Clone(s.entries[:r.Index-s.base.Index-1]), r)
	case wal.Reset:
		s.base, s.entries = wal.SnapshotInfo{Index: r.Index, Term: r.Term}, nil
	case wal.Drop:
		delete(s.cells, string(r.Data))
	default:
		key, _, _ := strings.Cut(string(r.Data), "=")
		s.cells[key] = string(r.Data)
	}
}

func (s *state) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "after %d of %d:", s.base.Index, s.base.Term)
	for _, e := range s.entries {
		fmt.Fprintf(&b, " %d/%d/%x", e.Index, e.Term, e.Data[:min(4, len(e.Data))])
	}
	for _, k := range slices.Sorted(maps.Keys(s.cells)) {
		fmt.Fprintf(&b, " %q", s.cells[k][:min(8, len(s.cells[k]))])
	}
	return b.String()
}

func equalStates(a, b *state) bool {
	return a.base.Index == b.base.Index && a.base.Term == b.base.Term && maps.Equal(a.cells, b.cells) &&
		slices.EqualFunc(a.entries, b.entries, func(x, y wal.Record) bool {
			return x.Index == y.Index && x.Term == y.Term && string(x.Data) == string(y.Data)
		})
}

// crasher simulates a replica whose disk loses power again and again.
type crasher struct {
	random *rand.Rand
	disk   *waltest.Disk
	opts   wal.Options

	log     *wal.Log
	durable *state             // what was flushed
	now     *state             // with what was appended since
	snaps   []wal.SnapshotInfo // that may exist
	least   uint64             // a snapshot of at least this index exists
	tell    bool               // keep a trace, which costs half of the time
	trace   []string
}

func newCrasher(seed uint64) *crasher {
	c := &crasher{random: rand.New(rand.NewPCG(seed, 1)), disk: waltest.NewDisk()}
	c.disk.Sector = []int{64, 512, 512, 512}[c.random.IntN(4)]
	c.opts = wal.Options{SegmentBytes: 1024 << c.random.IntN(3), Spares: 1 + c.random.IntN(2), Disk: c.disk, Rand: noise{c.random}}
	c.durable = &state{cells: map[string]string{}}
	c.now = c.durable.clone()
	c.snaps = []wal.SnapshotInfo{{}}
	return c
}

// noise is a source of random bytes that a seed determines.
type noise struct{ *rand.Rand }

func (n noise) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(n.Uint32())
	}
	return len(p), nil
}

func key(s wal.SnapshotInfo) string { return fmt.Sprintf("%d/%d", s.Index, s.Term) }

// content returns what a snapshot holds.
func content(s wal.SnapshotInfo) string {
	return strings.Repeat(key(s), 1+int(s.Index*7+s.Term*31)%200)
}

func (c *crasher) note(format string, args ...any) {
	if c.tell {
		c.trace = append(c.trace, fmt.Sprintf(format, args...))
	}
}

// life runs from one start to the next crash.
func (c *crasher) life() error {
	c.trace = c.trace[:0]
	c.arm()
	err := c.start()
	for steps := c.random.IntN(60); err == nil && steps > 0; steps-- {
		err = c.step()
	}
	if err != nil && !expected(err) {
		return err
	}
	if c.random.IntN(4) == 0 && !errors.Is(err, waltest.ErrPower) {
		c.note("kill")
		c.disk.Kill()
		c.disk.PowerAt(0)
		c.disk.FailAt(0, nil)
		return nil
	}
	c.note("power off")
	c.disk.Restart(c.random)
	return nil
}

// arm chooses the next fault.
func (c *crasher) arm() {
	switch c.random.IntN(8) {
	case 0:
		c.disk.FailAt(1+c.random.IntN(40), syscall.EIO)
	case 1:
		c.disk.FailAt(1+c.random.IntN(40), syscall.ENOSPC)
	case 2:
	default:
		c.disk.PowerAt(1 + c.random.IntN(60))
	}
}

// expected reports whether an error was injected.
func expected(err error) bool {
	return errors.Is(err, waltest.ErrPower) || errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ENOSPC)
}

// start opens the log and compares it with the oracle.
func (c *crasher) start() error {
	l, r, err := wal.Open("", me, c.opts)
	if err != nil {
		c.note("open: %v", err)
		return err
	}
	c.log = l
	got := &state{base: r.Snapshot, cells: map[string]string{}}
	for rec, err := range r.Records() {
		if err != nil {
			return fmt.Errorf("records: %w", err)
		}
		if rec.Kind == wal.Entry && rec.Index != got.base.Index+uint64(len(got.entries))+1 {
			return fmt.Errorf("entry %d is not in order, after %v", rec.Index, got)
		}
		got.do(rec)
	}
	c.note("opened: %v", got)
	if got.base.Index < c.least || !slices.ContainsFunc(c.snaps, func(s wal.SnapshotInfo) bool { return key(s) == key(got.base) }) {
		return fmt.Errorf("recovered snapshot %s, not one of %v", key(got.base), c.snaps)
	}
	if err := c.readSnapshot(got.base); err != nil {
		return err
	}
	switch {
	case equalStates(got, c.now.from(got.base)):
	case equalStates(got, c.durable.from(got.base)):
	default:
		return fmt.Errorf("recovered %v\nflushed %v\nappended %v", got, c.durable.from(got.base), c.now.from(got.base))
	}
	index, term := got.last()
	if r.Last != index || r.LastTerm != term || r.First != got.base.Index+1 {
		return fmt.Errorf("recovered says %d to %d of term %d, streams %v", r.First, r.Last, r.LastTerm, got)
	}
	c.durable, c.now = got, got.clone()
	c.snaps, c.least = []wal.SnapshotInfo{got.base}, got.base.Index
	return nil
}

func (c *crasher) readSnapshot(s wal.SnapshotInfo) error {
	if s.Index == 0 {
		return nil
	}
	r, err := c.log.Snapshots().Open(s)
	if err != nil {
		return fmt.Errorf("open snapshot: %w", err)
	}
	b, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		return fmt.Errorf("read snapshot: %w", err)
	}
	if string(b) != content(s) || string(r.Info().Meta) != key(s) {
		return fmt.Errorf("snapshot %s has other bytes", key(s))
	}
	return nil
}

// step does one thing that a replica does.
func (c *crasher) step() error {
	err := c.act()
	if err == nil || !expected(err) || errors.Is(err, waltest.ErrPower) {
		return err
	}
	c.note("failed: %v", err)
	// The disk failed without a crash. From here on, the log must either return the error or
	// continue as if nothing had happened.
	if again := c.log.Append(); again != nil {
		if err := c.log.Sync(); !errors.Is(err, again) {
			return fmt.Errorf("a log that failed with %w then said %v", again, err)
		}
		return err
	}
	return nil
}

func (c *crasher) act() error {
	switch n := c.random.IntN(100); {
	case n < 30:
		return c.appendEntries()
	case n < 45:
		return c.appendCells()
	case n < 70:
		return c.sync()
	case n < 80:
		if !c.log.Full() && n < 78 {
			return nil
		}
		return c.roll()
	case n < 85:
		return c.snapshot()
	case n < 87:
		return c.receive()
	case n < 93:
		to := c.least
		if c.random.IntN(2) == 0 {
			to -= min(to, uint64(c.random.IntN(5)))
		}
		c.note("release %d", to)
		return c.log.Release(to)
	case n < 95:
		c.note("prune")
		return c.log.Snapshots().Prune(2)
	case n < 98:
		c.note("prepare")
		return c.log.Prepare()
	default:
		return c.reopen()
	}
}

// data returns a record's data. It is often the same, so that sectors of one round fit into
// another.
func (c *crasher) data() []byte {
	if c.random.IntN(3) == 0 {
		return bytes.Repeat([]byte{'x'}, 700)
	}
	b := make([]byte, c.random.IntN([]int{8, 80, 900}[c.random.IntN(3)]))
	for i := range b {
		b[i] = byte(c.random.Uint32())
	}
	return b
}

func (c *crasher) add(r wal.Record) error {
	c.now.do(r)
	return c.log.Append(r)
}

func (c *crasher) appendEntries() error {
	index, term := c.now.last()
	index++
	if c.random.IntN(6) == 0 { // a new leader replaces some
		lowest := max(c.least, c.now.base.Index) + 1
		index -= min(index-lowest, uint64(c.random.IntN(4)))
		term++
	}
	for range 1 + c.random.IntN(3) {
		if err := c.add(wal.Record{Kind: wal.Entry, Term: term, Index: index, Data: c.data()}); err != nil {
			return err
		}
		index++
	}
	return nil
}

func (c *crasher) appendCells() error {
	k := fmt.Sprintf("k%d", c.random.IntN(6))
	if c.random.IntN(3) == 0 {
		return c.add(wal.Record{Kind: wal.Drop, Data: []byte(k)})
	}
	return c.add(wal.Record{Kind: wal.Intent, Data: append([]byte(k+"="), c.data()...)})
}

func (c *crasher) sync() error {
	c.note("sync %v", c.now)
	if err := c.log.Sync(); err != nil {
		return err
	}
	c.durable = c.now.clone()
	return nil
}

func (c *crasher) roll() error {
	var carry []wal.Record
	for _, k := range slices.Sorted(maps.Keys(c.now.cells)) {
		carry = append(carry, wal.Record{Kind: wal.Intent, Data: []byte(c.now.cells[k])})
	}
	c.note("roll %v", c.now)
	before := c.disk.Calls()
	err := c.log.Roll(carry)
	if err == nil || c.disk.Calls() > before+2 && c.log.Append() == nil {
		c.durable = c.now.clone()
	}
	return err
}

// snapshot makes a snapshot at an applied entry, which may not be flushed yet.
func (c *crasher) snapshot() error {
	index, _ := c.now.last()
	lowest := max(c.least, c.now.base.Index)
	if index <= lowest {
		return nil
	}
	index = lowest + 1 + uint64(c.random.IntN(int(index-lowest)))
	info := wal.SnapshotInfo{Index: index, Term: c.now.entries[index-c.now.base.Index-1].Term}
	info.Meta = []byte(key(info))
	c.note("snapshot %s", key(info))
	text := content(info)
	c.snaps = append(c.snaps, info)
	if _, err := c.log.Snapshots().Create(info, func(w io.Writer) error { _, err := io.WriteString(w, text); return err }); err != nil {
		return err
	}
	c.least = info.Index
	return nil
}

// receive takes a snapshot from a peer that is ahead of the log or contradicts it.
func (c *crasher) receive() error {
	index, term := c.now.last()
	info := wal.SnapshotInfo{Index: index + 1 + uint64(c.random.IntN(5)), Term: term + 1}
	if c.random.IntN(3) == 0 && index > c.least {
		info.Index = index
	}
	info.Meta = []byte(key(info))
	c.note("receive %s", key(info))
	text := content(info)
	file, err := snapshotFile(info, text)
	if err != nil {
		return err
	}
	info.Bytes = int64(len(file))
	r, err := c.log.Snapshots().Receive(info)
	if err != nil {
		return err
	}
	for r.Offset() < info.Bytes {
		at := r.Offset()
		if err := r.Write(at, file[at:min(info.Bytes, at+1+int64(c.random.IntN(900)))]); err != nil {
			return errors.Join(err, r.Close())
		}
		if c.random.IntN(30) == 0 {
			return r.Close()
		}
	}
	c.snaps = append(c.snaps, info)
	if _, err := r.Finish(); err != nil {
		// The snapshot may exist or not: only a restart shows it.
		c.disk.PowerAt(1)
		return err
	}
	c.least = info.Index
	if err := c.add(wal.Record{Kind: wal.Reset, Index: info.Index, Term: info.Term}); err != nil {
		return err
	}
	return c.sync()
}

// snapshotFile returns the bytes of a peer's snapshot.
func snapshotFile(info wal.SnapshotInfo, text string) ([]byte, error) {
	disk := waltest.NewDisk()
	l, _, err := wal.Open("", wal.Identity{Cluster: me.Cluster, Replica: 2}, wal.Options{SegmentBytes: 1024, Disk: disk})
	if err != nil {
		return nil, err
	}
	info, err = l.Snapshots().Create(info, func(w io.Writer) error { _, err := io.WriteString(w, text); return err })
	if err != nil {
		return nil, err
	}
	return disk.Bytes(fmt.Sprintf("snapshot-%020d-%020d", info.Index, info.Term)), l.Close()
}

func (c *crasher) reopen() error {
	c.note("reopen")
	if err := c.log.Close(); err != nil {
		return err
	}
	c.durable = c.now.clone()
	return c.start()
}

// crashes runs lives until one fails. That one is run again with a trace.
func crashes(seed uint64, lives int, prepare func(*waltest.Disk)) error {
	err := run(seed, lives, prepare, false)
	if err != nil {
		err = run(seed, lives, prepare, true)
	}
	return err
}

func run(seed uint64, lives int, prepare func(*waltest.Disk), tell bool) error {
	c := newCrasher(seed)
	c.tell = tell
	if prepare != nil {
		prepare(c.disk)
	}
	for i := range lives {
		if err := c.life(); err != nil {
			return fmt.Errorf("seed %d, life %d: %w\n%s", seed, i, err, strings.Join(c.trace, "\n"))
		}
	}
	return nil
}

// livesPerSeed is how many crashes one disk goes through.
const livesPerSeed = 50

var (
	seeds     = flag.Int("seeds", 200, "disks that TestWhatWasFlushedSurvivesAnyCrash crashes 50 times each")
	firstSeed = flag.Int("first-seed", 0, "the first of them")
)

func TestWhatWasFlushedSurvivesAnyCrash(t *testing.T) {
	t.Parallel()
	n := *seeds
	if testing.Short() {
		n = min(n, 80)
	}
	if raceEnabled { // only one thread runs: `make test` runs more of them without the detector
		n /= 10
	}
	for seed := range n {
		if err := crashes(uint64(*firstSeed+seed), livesPerSeed, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// A crash test proves something only if it finds deliberate bugs.
func TestCrashesFindADiskThatLies(t *testing.T) {
	t.Parallel()
	lies := map[string]func(*waltest.Disk){
		"flushes of files do nothing":         func(d *waltest.Disk) { d.IgnoreSync = true },
		"flushes of the directory do nothing": func(d *waltest.Disk) { d.IgnoreSyncDir = true },
	}
	for name, lie := range lies {
		t.Run(name, func(t *testing.T) {
			for seed := range 100 {
				if err := crashes(uint64(seed), livesPerSeed, lie); err != nil {
					return
				}
			}
			t.Error("nobody noticed")
		})
	}
}
