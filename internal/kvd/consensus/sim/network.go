package sim

import "time"

// network carries messages between the machines of a world. Messages of one link arrive in
// order, as on a connection. Links are independent, so messages of different links overtake
// each other.
type network struct {
	w         *World
	random    *random
	links     map[[2]place]*link
	median    time.Duration // of a link's delay, before its own factor
	loss      float64       // share of messages between replicas that are lost
	duplicate float64       // share of messages between replicas that arrive twice, the second time late
}

// place is the source or destination of a message: a replica by its id, or a client from
// firstClientPlace on.
type place int

const firstClientPlace place = 1000

func (p place) isReplica() bool { return p < firstClientPlace }

// link is one direction between two places.
type link struct {
	cuts   int     // number of faults that cut it
	factor float64 // of the median delay
	last   int64   // when the latest message arrives
}

func newNetwork(w *World, median time.Duration) *network {
	return &network{w: w, random: w.random.fork("network"), links: map[[2]place]*link{}, median: median}
}

func (n *network) link(from, to place) *link {
	l := n.links[[2]place{from, to}]
	if l == nil {
		l = &link{factor: 0.5 + n.random.fraction()}
		n.links[[2]place{from, to}] = l
	}
	return l
}

// send delivers message, which the network owns from now on. If the message is lost, lost is
// called at the time at which it would have arrived.
func (n *network) send(from, to place, message []byte, deliver func([]byte), lost func()) {
	l := n.link(from, to)
	at := n.w.now + 1 + n.random.around(time.Duration(float64(n.median)*l.factor))
	peers := from.isReplica() && to.isReplica()
	if !n.w.Defects.Reorder {
		at = max(at, l.last+1)
		l.last = at
	} else if n.random.chance(0.2) {
		at += n.random.around(4 * n.median)
	}
	n.w.Stats.Messages++
	if peers && n.random.chance(n.loss) {
		n.w.Stats.Faults.Lost++
		n.w.queue.push(at, lost)
		return
	}
	n.w.queue.push(at, func() {
		if l.cuts > 0 {
			n.w.Stats.Faults.CutOff++
			lost()
			return
		}
		deliver(message)
	})
	if peers && n.random.chance(n.duplicate) {
		n.w.Stats.Faults.Duplicated++
		again := append([]byte(nil), message...)
		n.w.queue.push(at+n.random.between(0, 100*time.Millisecond), func() {
			if l.cuts == 0 {
				deliver(again)
			}
		})
	}
}

// partition is the set of links that one fault cuts.
type partition []*link

// cut cuts the link from one place to another, and the reverse one if both is set.
func (p *partition) cut(n *network, from, to place, both bool) {
	*p = append(*p, n.link(from, to))
	if both {
		*p = append(*p, n.link(to, from))
	}
}

// cutFor cuts the links for a while, from a part of an election to several elections.
func (n *network) cutFor(p partition, r *random) {
	n.w.Stats.Faults.Partitions++
	for _, l := range p {
		l.cuts++
	}
	election := float64(n.w.Config.Tick * int64(n.w.Config.Election))
	n.w.after(int64(election*(0.3+5*r.fraction())), func() {
		n.w.note("a partition of %d links heals", len(p))
		for _, l := range p {
			l.cuts = max(0, l.cuts-1)
		}
	})
}

// heal restores every link between the places.
func (n *network) heal(places []place) {
	for _, a := range places {
		for _, b := range places {
			if a != b {
				n.link(a, b).cuts = 0
			}
		}
	}
}
