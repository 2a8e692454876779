package replica

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/consensus/session"
	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/kvd/resp"
	"github.com/weirdb/weir/internal/kvd/wire"
)

const (
	// gatewayTick is how often lines check for missing answers.
	gatewayTick = 50 * time.Millisecond
	// calmTick is how often they do while there is no client.
	calmTick = time.Second
	// maxIdleLines is how many sessions are kept for future connections.
	maxIdleLines = 1024
	// forgetAfter is how long weir goes on with the writes of a connection that has closed.
	forgetAfter = time.Minute
	// farTrip is the least round trip that another replica counts with: this one is
	// always the nearest.
	farTrip = int64(100 * time.Microsecond)
)

// A gateway serves Redis clients. Each connection has a line: a session of
// the cluster, like that of a native client. What a line sends goes to this replica's
// core, or to the leader as a message of this replica; the leader's answers come
// to this replica, and the kinds of messages that answer requests are passed to the
// gateway (see peers.Receive). Lines outlive connections, so that a connection
// costs no entry in the log.
type gateway struct {
	*Replica
	origin time.Time

	open atomic.Int64 // connections

	leaderless atomic.Int64 // when the leader was lost, by clock; 0: there is one

	mu       sync.Mutex // guards what follows
	lines    map[uint64]*line
	byID     map[uint64]*line // by their session ids
	lastSlot uint64
	idle     []*line // newest last
	linked   []uint64
	view     wire.Message // the newest

	in    sync.Mutex // guards post and paper
	post  []letter
	paper [][]wire.Message // slices of letters that were read, for reuse
	wake  chan struct{}

	// Of the gateway's goroutine.
	dirty []*line // with completed replies that are not flushed
	scan  []*line
}

// A letter is a batch of messages from a replica to the gateway.
type letter struct {
	from     uint64
	messages []wire.Message
	change   linkChange

	line  *line // instead: answers for this line from this replica's state
	reads []localRead
}

// linkChange says that a replica can be reached now, or no longer.
type linkChange uint8

const (
	unchanged linkChange = iota
	linkUp
	linkDown
)

func newGateway(r *Replica) *gateway {
	g := &gateway{
		Replica: r, origin: time.Now(), lines: map[uint64]*line{}, wake: make(chan struct{}, 1), byID: map[uint64]*line{},
		linked: []uint64{r.cfg.ID},
		// A leader may still have requests from before this replica was restarted, and send their
		// answers: those must not match any present request.
		lastSlot: rand.Uint64N(1 << 31),
	}
	g.view = r.core.View()
	g.leaderless.Store(1)
	return g
}

// clock is the sessions' clock, never 0.
func (g *gateway) clock() int64 { return int64(time.Since(g.origin)) + 1 }

func (g *gateway) conns() int { return int(g.open.Load()) }

// receive queues messages from a replica, including this one's core. The gateway owns
// them from now on.
func (g *gateway) receive(from uint64, ms []wire.Message) {
	g.put(letter{from: from, messages: ms})
}

func (g *gateway) connected(id uint64)    { g.put(letter{from: id, change: linkUp}) }
func (g *gateway) disconnected(id uint64) { g.put(letter{from: id, change: linkDown}) }

func (g *gateway) put(l letter) {
	g.in.Lock()
	g.post = append(g.post, l)
	g.in.Unlock()
	g.poke()
}

// poke wakes up the gateway's goroutine.
func (g *gateway) poke() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// run passes answers to lines until ctx ends.
func (g *gateway) run(ctx context.Context) {
	tick := time.NewTicker(gatewayTick)
	defer tick.Stop()
	var spent []letter
	calm := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if g.tick(); !calm && g.calm() {
				calm = true
				tick.Reset(calmTick)
			}
		case <-g.wake:
		}
		if calm && !g.calm() {
			calm = false
			tick.Reset(gatewayTick)
		}
		g.in.Lock()
		post := g.post
		g.post = spent[:0]
		g.in.Unlock()
		now := g.clock()
		for i := range post {
			g.read(now, &post[i])
		}
		g.flush()
		g.recycle(post)
		clear(post)
		spent = post
	}
}

// How many slices of letters are kept for reuse, and of what size.
const (
	keptPaper = 4
	paperMost = 4096
)

// recycle keeps the slices of letters that were read: a session may keep what
// messages refer to, but not the messages.
func (g *gateway) recycle(post []letter) {
	for i := range post {
		clear(post[i].messages)
	}
	g.in.Lock()
	defer g.in.Unlock()
	for i := range post {
		if ms := post[i].messages; ms != nil && cap(ms) <= paperMost && len(g.paper) < keptPaper {
			g.paper = append(g.paper, ms[:0])
		}
	}
}

// blank returns an empty slice for a letter.
func (g *gateway) blank() []wire.Message {
	g.in.Lock()
	defer g.in.Unlock()
	n := len(g.paper)
	if n == 0 {
		return nil
	}
	ms := g.paper[n-1]
	g.paper = g.paper[:n-1]
	return ms
}

// read reads one letter.
func (g *gateway) read(now int64, l *letter) {
	if l.line != nil {
		l.line.answered(l.reads)
		return
	}
	if l.change != unchanged {
		g.relink(now, l.from, l.change == linkUp)
		return
	}
	var last *line
	for i := range l.messages {
		m := &l.messages[i]
		if m.Kind == wire.NewView {
			if last != nil {
				last.finish(g)
				last = nil
			}
			g.newView(now, l.from, m)
			continue
		}
		to := g.lineOf(m)
		if to == nil {
			continue // of a line that was given up
		}
		if to != last {
			if last != nil {
				last.finish(g)
			}
			to.mu.Lock()
			last = to
		}
		to.s.Receive(now, l.from, m)
		if to.s.ID() != to.known {
			g.know(to)
		}
	}
	if last != nil {
		last.finish(g)
	}
}

// know makes a line findable by its present session. The caller owns it.
func (g *gateway) know(l *line) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.byID, l.known)
	if l.known = l.s.ID(); l.known != 0 {
		g.byID[l.known] = l
	}
}

// finish sends what a line has to send after it was told something, and unlocks
// it. The gateway's goroutine calls it.
func (l *line) finish(g *gateway) {
	if l.settle() && !l.marked {
		l.marked = true
		g.dirty = append(g.dirty, l)
	}
	l.mu.Unlock()
}

// mostLocal is how many bytes the core goroutine reads in one turn for readLocally;
// the last read may exceed it.
const mostLocal = 4 << 20

// readLocally makes the core goroutine answer queries of a line.
func (g *gateway) readLocally(l *line, reads []localRead) {
	g.inbox.call(func(consensus.Clock) { // after its end there are no answers
		n, bytes := 0, 0
		for ; n < len(reads) && bytes < mostLocal; n++ {
			reads[n].result = g.store.Evaluate(g.store.Clock(), nil, reads[n].command)
			bytes += len(reads[n].result)
		}
		g.put(letter{line: l, reads: reads[:n]})
		if n < len(reads) {
			g.readLocally(l, reads[n:])
		}
	})
}

// answered completes local reads. The gateway's goroutine calls it.
func (l *line) answered(reads []localRead) {
	l.mu.Lock()
	l.locals -= len(reads)
	for i := range reads {
		l.complete(&session.Outcome{Tag: reads[i].tag, Result: reads[i].result, Command: reads[i].command})
		reads[i] = localRead{}
	}
	l.tell()
	l.finish(l.g)
}

// flush writes to all connections for which something was completed.
func (g *gateway) flush() {
	for i, l := range g.dirty {
		l.mu.Lock()
		l.marked = false
		replies := l.replies
		l.mu.Unlock()
		if replies != nil {
			replies.Flush()
		}
		g.dirty[i] = nil
	}
	g.dirty = g.dirty[:0]
}

// lineOf finds the line for a message: by its request, which contains the line's number, or by
// its session.
func (g *gateway) lineOf(m *wire.Message) *line {
	g.mu.Lock()
	defer g.mu.Unlock()
	if slot := m.Request >> slotShift; slot != 0 {
		return g.lines[slot]
	}
	return g.byID[m.Session]
}

// all lists the present lines, in a slice that the next call reuses.
// The gateway's goroutine calls it.
func (g *gateway) all() []*line {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.scan = g.scan[:0]
	for _, l := range g.lines {
		g.scan = append(g.scan, l)
	}
	return g.scan
}

func (g *gateway) newView(now int64, from uint64, m *wire.Message) {
	g.mu.Lock()
	if m.View >= g.view.View {
		g.view = *m
	}
	g.mu.Unlock()
	for _, l := range g.all() {
		l.mu.Lock()
		l.s.Receive(now, from, m)
		l.finish(g)
	}
}

// relink tells all lines that a replica can be reached now, or no longer.
func (g *gateway) relink(now int64, id uint64, up bool) {
	g.mu.Lock()
	kept := g.linked[:0]
	for _, p := range g.linked {
		if p != id {
			kept = append(kept, p)
		}
	}
	g.linked = kept
	if up {
		g.linked = append(g.linked, id)
	}
	g.mu.Unlock()
	for _, l := range g.all() {
		l.mu.Lock()
		if up {
			g.connect(l.s, now, id)
		} else {
			l.s.Disconnected(now, id)
		}
		l.finish(g)
	}
}

func (g *gateway) connect(s *session.Session, now int64, id uint64) {
	s.Connected(now, id)
	if id != g.cfg.ID {
		s.Distance(id, max(farTrip, int64(g.peers.transport.RTT(peer.Addr(id)).Smoothed)))
	}
}

// tick makes all lines check for what takes too long.
func (g *gateway) tick() {
	now := g.clock()
	status := g.Replica.Status()
	for _, l := range g.all() {
		l.mu.Lock()
		l.s.Tick(now)
		l.expire(now)
		l.look(status)
		gone := l.replies == nil
		l.finish(g)
		if gone {
			g.retire(l, now)
		}
	}
}

// calm reports that there is no client, and nothing left of those that there were.
func (g *gateway) calm() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open.Load() == 0 && len(g.idle) == len(g.lines)
}

// led records whether there is a leader. The core goroutine calls it at each tick.
func (g *gateway) led(leader uint64) {
	if leader != 0 {
		g.leaderless.Store(0)
	} else {
		g.leaderless.CompareAndSwap(0, g.clock())
	}
}

// hopeless reports that there has been no leader for so long that a request
// would only wait for its timeout.
func (g *gateway) hopeless(now int64) bool {
	since := g.leaderless.Load()
	return since != 0 && now-since > 4*int64(g.cfg.Election) && g.Replica.Status().Leader == 0
}

// slotShift is the number of bits for a line's own request numbers.
const slotShift = 32

// begin gives a line a new session, which registers itself. The caller owns the line.
func (g *gateway) begin(l *line, now int64) {
	before := l.s
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.lines, l.slot)
	g.lastSlot++
	l.slot = g.lastSlot
	l.s = session.New(session.Config{Fast: session.Never, Requests: l.slot << slotShift})
	l.used = now
	if before != nil {
		l.s.Join(before.Token())
	}
	l.s.Receive(now, g.cfg.ID, &g.view)
	for _, id := range g.linked {
		g.connect(l.s, now, id)
	}
	g.lines[l.slot] = l
}

// Open implements resp.Backend: a connection gets a line that another has left,
// or a new one.
func (g *gateway) Open(replies resp.Replies) resp.Session {
	g.open.Add(1)
	g.mu.Lock()
	var l *line
	if n := len(g.idle); n > 0 {
		l = g.idle[n-1]
		g.idle = g.idle[:n-1]
		l.busy = true
	}
	g.mu.Unlock()
	if l == nil {
		l = &line{g: g, busy: true, window: firstReads}
		l.mu.Lock()
		g.begin(l, g.clock())
	} else {
		l.mu.Lock()
	}
	defer l.mu.Unlock()
	l.replies = replies
	l.settle()
	g.poke()
	return l
}

// retire adds a line whose connection has closed to the idle ones once it has nothing
// in flight, and removes it when it has been idle for so long that its
// session may expire. It is called without locks.
func (g *gateway) retire(l *line, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	// The next connection must not see weak writes of the previous one before they are stable.
	done := l.s.Open() == 0 && l.s.Unstable() == 0
	forget := false
	switch at := slices.Index(g.idle, l); {
	case l.busy:
	case at >= 0:
		if forget = l.stale(now); forget {
			g.idle = slices.Delete(g.idle, at, at+1)
		}
	case done && !l.expired && len(g.idle) < maxIdleLines:
		g.idle = append(g.idle, l)
	default:
		forget = done || now-l.left > int64(forgetAfter)
	}
	if forget {
		delete(g.lines, l.slot)
		delete(g.byID, l.known)
	}
}

// send sends a line's messages to their destinations. What does not arrive is
// sent again by the session.
func (g *gateway) send(sends []session.Send) {
	local := 0
	for i := range sends {
		if sends[i].To == g.cfg.ID {
			local++
		}
	}
	if local > 0 {
		ms := make([]wire.Message, 0, local)
		for i := range sends {
			if sends[i].To == g.cfg.ID {
				ms = append(ms, sends[i].Message)
			}
		}
		g.inbox.deliver(gatewayAddr, ms)
	}
	if local == len(sends) {
		return
	}
	// Most go to one replica, the leader.
	for begin := 0; begin < len(sends); {
		to := sends[begin].To
		end := begin
		for end < len(sends) && sends[end].To == to {
			end++
		}
		if to != g.cfg.ID {
			ms := make([]wire.Message, 0, end-begin)
			for i := begin; i < end; i++ {
				ms = append(ms, sends[i].Message)
			}
			g.peers.send(peer.Addr(to), ms)
		}
		begin = end
	}
}

// Status implements resp.Backend: it is the last published one.
func (g *gateway) Status() *resp.Status { return g.redis.Load() }
