package outbox

import "time"

// away is what a lane knows while its calls meet no broker. Perhaps there is none, and
// perhaps it is only the part of it that has one destination, a partition without a
// leader, say, or a queue that has lost its quorum: it finds out by mixing. So does a
// worker of claims.
type away struct {
	destinations map[string]bool // that met none themselves; nil: the last call met one
	since        time.Time
}

// awayPatience is how long nothing may be taken before what fills the relay makes
// room, as if its destination alone were away.
const awayPatience = 10 * time.Second

// note takes in whether a call met the broker.
func (a *away) note(v *verdict) {
	if v.outage == nil || len(v.delivered) > 0 {
		*a = away{}
		return
	}
	if a.destinations == nil {
		*a = away{map[string]bool{}, time.Now()}
	}
	for d := range v.absent {
		a.destinations[d] = true
	}
}

// awayLast puts messages of destinations that met no broker behind all others: if
// some of these are taken, it is those destinations. A sink may send nothing behind
// the first message whose destination it cannot reach, so they must not come first.
// Those beyond the first few are last. Messages of one key keep their order.
func awayLast[T any](r *Relay, a *away, rows []T, row func(*T) *Row, few int) []T {
	if len(a.destinations) == 0 {
		return rows
	}
	sorted := make([]T, 0, len(rows))
	var probes, rest []T
	const isProbe, isRest = 1, 2
	behind := map[string]int{} // keys of the two
	for i := range rows {
		it := row(&rows[i])
		ordered := it.Key != "" && !r.cfg.Unordered
		place := 0
		if ordered {
			place = behind[it.Key]
		}
		if place == 0 && a.destinations[r.circuits.place(&it.Message)] {
			place = isProbe
		}
		if place == isProbe && len(probes) >= few {
			place = isRest
		}
		switch place {
		case isProbe:
			probes = append(probes, rows[i])
		case isRest:
			rest = append(rest, rows[i])
		default:
			sorted = append(sorted, rows[i])
			continue
		}
		if ordered {
			behind[it.Key] = place
		}
	}
	return append(append(sorted, probes...), rest...)
}

// theRow is for awayLast.
func theRow(row *Row) *Row { return row }

// stuck reports whether nothing else can be read, and has not been for a while, because
// of messages whose destination meets no broker. rows are those of a call.
func (n *lane) stuck(rows []Row) bool {
	if n.away.destinations == nil || time.Since(n.away.since) < awayPatience || n.hasRoom() {
		return false
	}
	for i := range rows {
		if !n.away.destinations[n.circuits.place(&rows[i].Message)] {
			return false
		}
	}
	return true
}
