package sim

import (
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// realTime checks that all strong operations, on all keys together, have one order that agrees
// with real time and with their answers. The answers fix the order of operations that conflict
// (answers has compared them). Operations that commute may be in the log in another order than
// they happened in, after a change of leader. So the check is whether "before in the log, and
// in conflict" and "answered before the other was issued" together have a cycle.
func (ck *checker) realTime() {
	nodes := ck.strongNodes()
	edges := conflicts(nodes)
	waiting := make([]int, len(nodes))
	for _, list := range edges {
		for _, to := range list {
			waiting[to]++
		}
	}
	left := len(nodes)
	for left > 0 {
		earliest := ^uint64(0)
		for i, n := range nodes {
			if n != nil && waiting[i] >= 0 {
				earliest = min(earliest, n.end)
			}
		}
		progress := false
		for i, n := range nodes {
			if n == nil || waiting[i] != 0 || n.o.called > earliest {
				continue
			}
			waiting[i] = -1
			for _, to := range edges[i] {
				waiting[to]--
			}
			left--
			progress = true
		}
		if !progress {
			ck.violate("real time", "no order of these fits both the log and real time: %s", stuck(nodes, waiting, earliest))
			return
		}
	}
}

// node is an operation in the graph. end is when it was answered, or never.
type node struct {
	o   *operation
	end uint64
}

// strongNodes returns the operations with a place in the order: strong operations, and the weak
// writes in the log, which happen at some time after they were issued.
func (ck *checker) strongNodes() []*node {
	var nodes []*node
	for _, o := range ck.history {
		switch {
		case o.wait, o.write && o.revision == 0, !o.write && (o.weak || !o.done()):
			continue
		case o.done() && !o.weak:
			nodes = append(nodes, &node{o, o.returned})
		default:
			nodes = append(nodes, &node{o, ^uint64(0)})
		}
	}
	return nodes
}

// conflicts returns, for each node, the nodes that must follow it because of the log.
func conflicts(nodes []*node) [][]int {
	edges := make([][]int, len(nodes))
	byKey := map[string][]int{}
	var keys []string
	for i, n := range nodes {
		for _, k := range touched(n.o) {
			if byKey[k] == nil {
				keys = append(keys, k)
			}
			byKey[k] = append(byKey[k], i)
		}
	}
	for _, k := range keys {
		list := byKey[k]
		slices.SortStableFunc(list, func(a, b int) int { return position(nodes[a].o) - position(nodes[b].o) })
		lastWrite := -1
		var reads []int
		for _, i := range list {
			if lastWrite >= 0 {
				edges[lastWrite] = append(edges[lastWrite], i)
			}
			if !nodes[i].o.write {
				reads = append(reads, i)
				continue
			}
			for _, r := range reads {
				edges[r] = append(edges[r], i)
			}
			lastWrite, reads = i, nil
		}
	}
	return edges
}

// position orders a read after the write of its revision.
func position(o *operation) int {
	p := int(o.revision) * 2
	if !o.write {
		p++
	}
	return p
}

// universe has all keys that a workload uses.
var universe = func() []string {
	var keys []string
	for _, kind := range "ckt" {
		for i := range maxKeys {
			keys = append(keys, string(kind)+string(rune('0'+i)))
		}
	}
	return keys
}()

// touched returns the keys of an operation, including each key of its spans.
func touched(o *operation) []string {
	var keys []string
	for _, k := range universe {
		if o.foot.Holds(k) {
			keys = append(keys, k)
		}
	}
	return keys
}

// stuck describes the operations of a cycle, or some that wait for it.
func stuck(nodes []*node, waiting []int, earliest uint64) string {
	var b strings.Builder
	shown := 0
	for i, n := range nodes {
		if waiting[i] >= 0 && (n.end == earliest || waiting[i] == 0) && shown < 6 {
			b.WriteString("\n    " + n.o.String())
			shown++
		}
	}
	return b.String()
}

// register is a key as the linearizability checker sees it: without logs and revisions, only by
// the clients' records.
type register struct {
	exists bool
	value  string
}

// maxHistory is the longest history of a key that is checked: the search is exponential.
const maxHistory = 80

// patience limits the search for one key's order. Searches that give up are counted, and tests
// limit them.
const patience = 500 * time.Millisecond

// registers checks the histories of single keys with porcupine.
func (ck *checker) registers() {
	if ck.Seed%4 != 0 {
		return // the search would take longer than the run; realTime has checked these operations
	}
	model := porcupine.Model{
		Init: func() any { return register{} },
		Step: stepRegister,
	}
	for _, k := range universe {
		if k[0] == 't' {
			continue // it expires
		}
		history, ok := ck.historyOf(k)
		if !ok || len(history) == 0 || len(history) > maxHistory {
			continue
		}
		ck.Stats.Keys++
		switch porcupine.CheckOperationsTimeout(model, history, patience) {
		case porcupine.Illegal:
			ck.violate("linearizable", "the history of key %s has no order", k)
			return
		case porcupine.Unknown:
			ck.Stats.Undecided++
		case porcupine.Ok:
		}
	}
}

// historyOf returns the operations on a key, or none if some of them touch other keys as well.
func (ck *checker) historyOf(key string) ([]porcupine.Operation, bool) {
	var history []porcupine.Operation
	for _, o := range ck.history {
		if o.wait || !o.foot.Holds(key) || !o.write && (o.weak || !o.done()) || o.refused {
			continue
		}
		if len(o.foot.Keys) != 1 || len(o.foot.Spans) > 0 {
			return nil, false
		}
		p := porcupine.Operation{ClientId: o.session, Input: o, Call: int64(o.called), Return: int64(ck.steps) + 1}
		if o.done() && !o.weak {
			p.Output, p.Return = o.result, int64(o.returned)
		}
		history = append(history, p)
	}
	return history, true
}

// stepRegister reports whether the register gives this answer, and returns its next state.
func stepRegister(state, input, output any) (bool, any) {
	s, o := state.(register), input.(*operation)
	m := newOracle()
	key := o.foot.Keys[0]
	if s.exists {
		m.Items[key] = oracleItem{Value: s.value}
	}
	c := o.command
	got := m.do(&c, 0)
	if want, told := output.([]byte); told {
		r, err := wire.ParseResult(want)
		if err != nil {
			return false, s
		}
		r.Revision = 0 // the checker does not know positions
		if string(r.Append(nil)) != string(got.Append(nil)) {
			return false, s
		}
	}
	item, exists := m.Items[key]
	return true, register{exists, item.Value}
}
