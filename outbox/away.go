package outbox

import "time"

// away is what a lane knows while its calls meet no broker. Perhaps there is none, and
// perhaps it is only the part of it that has one destination, a partition without a
// leader, say, or a queue that has lost its quorum: the lane finds out by mixing.
type away struct {
	destinations map[string]bool // that met none; nil: the last call met one
	since        time.Time
}

// awayPatience is how long nothing may be taken before what fills the relay makes
// room, as if its destination alone were away.
const awayPatience = 10 * time.Second

// noteAway takes in whether a call met the broker.
func (n *lane) noteAway(v *verdict) {
	if v.outage == nil || len(v.delivered) > 0 {
		n.away = away{}
		return
	}
	if n.away.destinations == nil {
		n.away = away{map[string]bool{}, time.Now()}
	}
	for i := range v.back {
		n.away.destinations[n.circuits.route(&v.back[i].Message)] = true
	}
}

// mix puts a few messages of destinations that met no broker at the head of the
// queue, behind them all others, and then the rest. If some of the others are taken,
// it is those destinations. Messages of one key keep their order.
func (n *lane) mix() {
	if n.away.destinations == nil || len(n.queue) == 0 {
		return
	}
	ready := make([]item, 0, len(n.queue))
	var rest []item
	behind := map[string]bool{} // keys of the rest
	tried := 0
	for _, it := range n.queue {
		ordered := it.Key != "" && !n.cfg.Unordered
		out := ordered && behind[it.Key]
		if !out && n.away.destinations[n.circuits.route(&it.Message)] {
			tried++
			out = tried > probes
		}
		if !out {
			ready = append(ready, it)
			continue
		}
		rest = append(rest, it)
		if ordered {
			behind[it.Key] = true
		}
	}
	n.queue = append(ready, rest...)
}

// stuck tells whether nothing else can be read, and has not been for a while, because
// of messages whose destination meets no broker. rows are those of a call.
func (n *lane) stuck(rows []Row) bool {
	if n.away.destinations == nil || time.Since(n.away.since) < awayPatience || n.hasRoom() {
		return false
	}
	for i := range rows {
		if !n.away.destinations[n.circuits.route(&rows[i].Message)] {
			return false
		}
	}
	return true
}
