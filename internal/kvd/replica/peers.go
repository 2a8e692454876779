package replica

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// peers is this replica's end of the connections to other replicas, and to native
// clients: it passes what arrives to its recipients.
type peers struct {
	*Replica
	transport *peer.Transport

	// Of the core goroutine.
	known   map[uint64]string // the addresses that the transport has
	first   map[uint64]string // the addresses that this replica was started with
	asked   int               // ticks without a leader
	seen    map[uint64]bool   // replicas that were members since the start
	leaving map[uint64]int    // ticks until a replica that was removed is disconnected

	untilNote int // ticks since acked was recorded

	mu      sync.Mutex      // guards what follows
	linked  map[uint64]bool // connected replicas
	refused map[uint64]bool // those of them that must stop
	clients map[peer.Addr]struct{}
	told    map[uint64]string   // members that others have reported, while no leader is known
	lives   map[uint64][16]byte // without a disk: the process in which a replica was first met
	logs    map[uint64][8]byte  // of connected replicas, if they report it
	meeting map[uint64]bool     // those whose log is being recorded
	meets   sync.WaitGroup      // goroutines that record them
	acked   map[uint64]uint64   // committed entries that a replica is known to have had on its disk
	noted   map[uint64]uint64   // acked, as recorded on this replica's disk
	noting  bool
	group   group                // of this replica
	groups  map[uint64]toldGroup // as connected replicas report it
}

func newPeers(r *Replica) *peers {
	return &peers{
		Replica: r, seen: map[uint64]bool{}, leaving: map[uint64]int{},
		linked: map[uint64]bool{}, refused: map[uint64]bool{}, clients: map[peer.Addr]struct{}{}, lives: map[uint64][16]byte{}, acked: map[uint64]uint64{},
		logs: map[uint64][8]byte{}, groups: map[uint64]toldGroup{}, meeting: map[uint64]bool{},
	}
}

// options are those of the transport.
func (p *peers) options() peer.Options {
	c := &p.cfg
	o := peer.Options{
		ID: c.ID, Cluster: c.Cluster, Listen: c.Listen, Peers: map[uint64]string{},
		Secret: c.Secret, TLS: c.TLS, Insecure: c.Insecure,
		Position: p.position, AllowPeer: p.allow, Group: p.ownGroup,
		SnapshotRate: c.SnapshotRate, Delay: c.PeerDelay, Latency: c.Latency, Log: c.Log.With("part", "peer"),
	}
	if !c.Memory {
		o.LogID = p.disk.log.Identity().Log.Tag()
	}
	for _, m := range c.Members {
		if m.ID == c.ID {
			o.Advertise = m.Addr
			continue
		}
		o.Peers[m.ID] = m.Addr
	}
	p.known, p.first = maps.Clone(o.Peers), maps.Clone(o.Peers)
	return o
}

// position is the last durable position of the log.
func (p *peers) position() (term, index uint64) {
	at := p.disk.last.Load()
	return at.term, at.index
}

// allow refuses replicas that are not members, as far as this one can know. The replica has
// proven the secret, or has a certificate, if they are demanded.
func (p *peers) allow(who peer.Remote, known bool) error {
	if err := p.sameGroup(who); err != nil {
		return err
	}
	s := p.Status()
	switch {
	case known, slices.Contains(s.Leaves, who.ID):
		return nil
	case slices.Contains(s.Left, who.ID):
		return fmt.Errorf("replica %d was removed from the cluster; its number is never used again", who.ID)
	case len(s.Members) == 0:
		return nil // this one waits to be added: the present leader will tell it the members
	case who.Term > s.Term || who.Index > s.Last:
		return nil // its log is further: it may have been added since this one last heard of the cluster
	}
	return fmt.Errorf("replica %d is not a member of this cluster (weir kv member add)", who.ID)
}

// forgot returns what is wrong with a replica whose disk is older than what it
// acknowledged. The replicas that have led since know what it had
// acknowledged. Without disks the position does not matter: a replica that was met in another
// process has lost everything that it knew, including its votes.
func (p *peers) forgot(who peer.Remote) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cfg.Memory {
		first, met := p.lives[who.ID]
		if !met {
			p.lives[who.ID] = who.Instance
		} else if who.Index == 0 && who.Instance != first {
			return &ForgotError{Replica: who.ID, Memory: true}
		}
	}
	if acked := p.acked[who.ID]; who.Index < acked {
		return &ForgotError{Replica: who.ID, Had: acked, Has: who.Index}
	}
	if p.otherLog(who) {
		return &ForgotError{Replica: who.ID, Other: true}
	}
	return nil
}

// ForgotError is why a replica is refused, or stops: its disk is older than what
// it acknowledged.
type ForgotError struct {
	Replica  uint64
	Had, Has uint64 // entries of the log
	Memory   bool   // it has no disk, and was met in another process
	Other    bool   // it has another log than it was met with
}

func (e *ForgotError) Error() string {
	if e.Memory {
		return fmt.Sprintf("replica %d was started again and keeps nothing on a disk: it has forgotten what it acknowledged and whom it voted for; "+
			"replace this member (weir kv member replace)", e.Replica)
	}
	if e.Other {
		return fmt.Sprintf("replica %d has another log than it was met with: its directory was lost, and with it what it acknowledged and whom it voted for; "+
			"replace this member (weir kv member replace)", e.Replica)
	}
	return fmt.Sprintf("replica %d acknowledged the log up to entry %d, but has it up to %d only: its disk was lost or is an older copy; "+
		"replace this member (weir kv member replace); only if the directories of all replicas were put back from copies of different moments, "+
		"see docs/kv-operating.md, Directories are put back from copies", e.Replica, e.Had, e.Has)
}

// refuse tells a replica that it must stop, and ignores its messages from then on.
func (p *peers) refuse(from peer.Addr, why error) {
	p.mu.Lock()
	p.refused[uint64(from)] = true
	p.mu.Unlock()
	p.cfg.Log.Error("a replica is refused", "peer", uint64(from), "error", why)
	m := wire.Message{Kind: wire.Refused, Code: wire.CodeForgot, Data: []byte(why.Error())}
	if _, err := p.transport.Send(from, []wire.Message{m}); err != nil {
		p.transport.Disconnect(from, why) // it connects again, and is told then
	}
}

// hangUp disconnects a replica, and ignores its messages until it connects again.
func (p *peers) hangUp(from peer.Addr, why error) {
	p.mu.Lock()
	p.refused[uint64(from)] = true
	p.mu.Unlock()
	p.transport.Disconnect(from, why)
}

// deaf reports whether a replica is refused.
func (p *peers) deaf(id uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused[id]
}

// acknowledged records what a replica has on its disk.
func (p *peers) acknowledged(id, index uint64) {
	p.mu.Lock()
	p.acked[id] = max(p.acked[id], index)
	p.mu.Unlock()
}

// farewellTicks is how long the connection to a removed replica stays open,
// so that it learns of that: the engine sends it nothing any more.
const farewellTicks = 100

// askEvery is the number of ticks after which a replica that knows no leader asks the connected
// replicas who the members are.
const askEvery = 25

// whoLeads asks the connected replicas who the members are, while this one
// knows no leader: it waits to be added and knows only some members, or
// was away while they changed. The core goroutine calls it at each tick.
func (p *peers) whoLeads(s *Status) {
	if s.Leader != 0 && len(s.Members) > 0 {
		p.asked = 0
		p.learn(nil)
		return
	}
	if p.asked++; p.asked%askEvery != 0 {
		return
	}
	p.mu.Lock()
	linked := slices.Collect(maps.Keys(p.linked))
	p.mu.Unlock()
	for _, id := range linked {
		p.send(peer.Addr(id), []wire.Message{{Kind: wire.Inspect, Request: askedForMembers}})
	}
}

// askedForMembers marks the answers to whoLeads' questions. Requests of Redis clients
// have smaller numbers.
const askedForMembers = 1<<64 - 1

// learn records members, and their addresses, that another replica has reported.
func (p *peers) learn(list []consensus.Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(list) == 0 {
		p.told = nil
		return
	}
	if p.told == nil {
		p.told = map[uint64]string{}
	}
	for _, m := range list {
		if m.ID != p.cfg.ID && m.Addr != "" {
			p.told[m.ID] = m.Addr
		}
	}
}

// members tells the transport who belongs to the cluster, and tells removed replicas that they
// no longer do. The core goroutine calls it at each tick.
func (p *peers) members(s *Status) {
	now := make(map[uint64]string, len(s.Members))
	for _, m := range s.Members {
		if m.ID != p.cfg.ID {
			now[m.ID], p.seen[m.ID] = m.Addr, true
		}
	}
	if len(s.Members) == 0 { // it knows those that it was started with
		maps.Copy(now, p.first)
	}
	p.mu.Lock()
	for id, addr := range p.told {
		if _, known := now[id]; !known && !slices.Contains(s.Left, id) {
			now[id] = addr
		}
	}
	p.mu.Unlock()
	for id, addr := range p.known {
		if _, still := now[id]; still {
			continue
		}
		if slices.Contains(s.Leaves, id) { // not before the change has ended, which needs its vote
			now[id], p.seen[id] = addr, true
			continue
		}
		left, told := p.leaving[id]
		if !told && p.seen[id] { // otherwise it may be one that waits to be added
			left = farewellTicks
			p.send(peer.Addr(id), []wire.Message{{Kind: wire.Refused, Code: wire.CodeRemoved}})
		}
		if p.leaving[id] = left - 1; left > 0 {
			now[id] = addr
		} else {
			delete(p.leaving, id)
		}
	}
	if maps.Equal(now, p.known) {
		return
	}
	p.known = now
	p.transport.SetPeers(now)
	p.mu.Lock()
	maps.DeleteFunc(p.acked, func(id, _ uint64) bool { _, still := now[id]; return !still })
	p.mu.Unlock()
}

// send sends messages of the core. Messages to a replica that are lost are repeated by
// the core, or by the client that waits. A client that cannot get its
// answers is disconnected: it asks again elsewhere.
func (p *peers) send(to peer.Addr, ms []wire.Message) {
	if err := p.trySend(to, ms); err != nil && to.Client() {
		p.transport.Disconnect(to, err)
	}
}

func (p *peers) trySend(to peer.Addr, ms []wire.Message) error {
	if !to.Client() && p.deaf(uint64(to)) {
		return nil
	}
	_, err := p.transport.Send(to, ms)
	return err
}

// up reports whether a replica is connected.
func (p *peers) up(id uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.linked[id]
}

// toClients sends messages to all native clients.
func (p *peers) toClients(ms []wire.Message) {
	p.mu.Lock()
	all := make([]peer.Addr, 0, len(p.clients))
	for a := range p.clients {
		all = append(all, a)
	}
	p.mu.Unlock()
	for _, a := range all {
		p.send(a, ms)
	}
}

// Up implements peer.Handler.
func (p *peers) Up(from peer.Addr, who peer.Remote) {
	if !from.Client() {
		p.mu.Lock()
		p.linked[uint64(from)], p.logs[uint64(from)] = true, who.LogID
		p.mu.Unlock()
		if err := p.sameGroup(who); err != nil {
			p.hangUp(from, err)
			return
		}
		if err := p.forgot(who); err != nil {
			p.refuse(from, err)
			return
		}
		if err := p.meet(who.ID, who.LogID); err != nil {
			p.hangUp(from, fmt.Errorf("note its log: %w", err))
			return
		}
		if err := p.tellsGroup(who); err != nil {
			p.hangUp(from, err)
			return
		}
		p.cfg.Log.Info("replica connected", "peer", uint64(from), "address", who.Address, "index", who.Index)
		p.gateway.connected(uint64(from))
		return
	}
	p.mu.Lock()
	p.clients[from] = struct{}{}
	p.mu.Unlock()
	p.cfg.Log.Debug("client connected", "client", from.String(), "from", who.From.String())
	p.greet(from)
}

// greet tells a new client the open view, so that it knows which replica to ask.
func (p *peers) greet(to peer.Addr) {
	p.inbox.call(func(consensus.Clock) { p.send(to, []wire.Message{p.core.View()}) })
}

// Down implements peer.Handler.
func (p *peers) Down(from peer.Addr, why error) {
	if !from.Client() {
		level := slog.LevelWarn
		if errors.Is(why, peer.ErrClosed) {
			level = slog.LevelDebug
		}
		p.mu.Lock()
		delete(p.linked, uint64(from))
		delete(p.logs, uint64(from))
		delete(p.groups, uint64(from))
		delete(p.refused, uint64(from))
		p.mu.Unlock()
		p.cfg.Log.Log(p.ctx, level, "replica disconnected", "peer", uint64(from), "reason", why.Error())
		p.gateway.disconnected(uint64(from))
		return
	}
	p.mu.Lock()
	delete(p.clients, from)
	p.mu.Unlock()
	p.inbox.call(func(consensus.Clock) { p.feed.gone(from) })
	p.cfg.Log.Debug("client disconnected", "client", from.String(), "reason", why.Error())
}

// Receive implements peer.Handler. Requests and messages among replicas
// go to the core; answers to requests of this replica's gateway
// come from a replica and go to the gateway. Some messages
// go to both.
func (p *peers) Receive(from peer.Addr, ms []wire.Message) {
	if from.Client() {
		if ms = p.requests(from, ms); len(ms) > 0 {
			p.inbox.deliver(consensus.Addr(from), ms)
		}
		return
	}
	if p.deaf(uint64(from)) {
		return
	}
	answers := 0
	for i := range ms {
		if forGateway(ms[i].Kind) {
			answers++
		}
		if m := &ms[i]; m.Request == askedForMembers && (m.Kind == wire.Inspect || m.Kind == wire.ReadDone) {
			p.membership(from, m)
			continue
		}
		if m := &ms[i]; m.Kind == wire.Refused && (m.Code == wire.CodeForgot || m.Code == wire.CodeRemoved) {
			p.mustStop(from, m)
			return
		}
	}
	if answers == 0 {
		p.inbox.deliver(consensus.Addr(from), ms)
		return
	}
	gate := make([]wire.Message, 0, answers)
	rest := ms[:0]
	for i := range ms {
		if forGateway(ms[i].Kind) {
			gate = append(gate, ms[i])
		}
		if forCore(ms[i].Kind) {
			rest = append(rest, ms[i])
		}
	}
	if len(rest) > 0 {
		p.inbox.deliver(consensus.Addr(from), rest)
	}
	p.gateway.receive(uint64(from), gate)
}

// membership answers a replica that asks who the members are, or processes the answer.
func (p *peers) membership(from peer.Addr, m *wire.Message) {
	if m.Kind == wire.Inspect {
		p.inspect(from, m.Request)
		return
	}
	var s Status
	if err := json.Unmarshal(m.Data, &s); err != nil {
		p.cfg.Log.Warn("what a replica says of the members makes no sense", "peer", uint64(from), "error", err)
		return
	}
	p.learn(s.Members)
}

// mustStop ends the core goroutine because another replica says so.
func (p *peers) mustStop(from peer.Addr, m *wire.Message) {
	err := error(&RemovedError{p.cfg.ID})
	if m.Code == wire.CodeForgot {
		err = fmt.Errorf("refused by replica %d: %s", uint64(from), m.Data)
	}
	p.inbox.call(func(consensus.Clock) { p.broken = err })
}

// forGateway reports whether messages of this kind may be answers for the gateway.
func forGateway(k wire.Kind) bool {
	switch k {
	case wire.Done, wire.Spec, wire.Vote, wire.WeakDone, wire.ReadDone, wire.Redirect, wire.Refused, wire.NewView:
		return true
	}
	return false
}

// forCore reports whether the core needs messages of this kind from a replica: all but plain
// answers. A refusal may be of a weak write that the core has forwarded.
func forCore(k wire.Kind) bool {
	return !forGateway(k) || k == wire.NewView || k == wire.Refused
}

// requests removes from a client's messages what is not for the core: watches,
// and everything that only replicas may send.
func (p *peers) requests(from peer.Addr, ms []wire.Message) []wire.Message {
	kept := ms[:0]
	for i := range ms {
		switch m := &ms[i]; m.Kind {
		case wire.Strong, wire.Record, wire.Weak, wire.Read, wire.WeakRead, wire.Register, wire.Stable, wire.Configure:
			kept = append(kept, *m)
		case wire.Watch:
			ask := *m // m itself may be overwritten
			p.inbox.call(func(consensus.Clock) { p.watch(from, &ask) })
		case wire.Unwatch:
			request := m.Request
			p.inbox.call(func(consensus.Clock) { p.feed.unwatch(from, request) })
		case wire.Inspect:
			p.inspect(from, m.Request)
		default:
			p.transport.Disconnect(from, fmt.Errorf("%w: %s", errNotAClient, m.Kind))
			return nil
		}
	}
	return kept
}

var errNotAClient = errors.New("a client sent what only replicas may say")

func (p *peers) watch(from peer.Addr, m *wire.Message) {
	err := p.feed.watch(p.store, from, m)
	if errors.Is(err, errCutOff) {
		p.send(from, []wire.Message{cutOff(m.Request, p.feed.cut)})
		return
	}
	if err != nil {
		p.send(from, []wire.Message{{Kind: wire.Refused, Request: m.Request, Code: wire.CodeInvalid, Data: []byte(err.Error())}})
	}
}

// inspect sends a client this replica's report.
func (p *peers) inspect(from peer.Addr, request uint64) {
	state, err := json.Marshal(p.Status())
	if err != nil {
		p.transport.Disconnect(from, fmt.Errorf("encode the state: %w", err))
		return
	}
	p.send(from, []wire.Message{{Kind: wire.ReadDone, Request: request, Data: state}})
}

// ReceiveSnapshot implements peer.Handler.
func (p *peers) ReceiveSnapshot(from uint64, meta []byte, size int64) (peer.SnapshotSink, error) {
	return p.snapshots.receive(from, meta, size)
}

// gated makes connections wait until the replica is complete.
type gated struct {
	*peers
	open <-chan struct{}
}

// Up implements peer.Handler.
func (g gated) Up(from peer.Addr, who peer.Remote) {
	<-g.open
	g.peers.Up(from, who)
}

// ReceiveSnapshot implements peer.Handler.
func (g gated) ReceiveSnapshot(from uint64, meta []byte, size int64) (peer.SnapshotSink, error) {
	<-g.open
	return g.peers.ReceiveSnapshot(from, meta, size)
}
