package bulk

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// A Job is one piece of work of a Graph.
type Job struct {
	// ID is unique in the graph.
	ID string

	// After are the jobs that must have ended before. Ones that are not in the
	// graph are ignored: they are done.
	After []string

	// Locks are things that no two jobs may hold at once, such as tables that
	// both would lock against each other. Shared are ones that jobs may hold beside
	// each other, but not beside one that has them among its Locks. No lock is in both.
	Locks, Shared []string

	// Rank orders jobs that could start: the lowest first.
	Rank int

	// Size orders jobs of one rank: the one with the longest way behind it first, so
	// that no worker is left alone with that at the end. The way of a job is its size
	// and the longest way of those that wait for it, in bytes of work.
	Size int64

	// Do does it, as the given worker, one of 0 to workers-1. An error ends the
	// run: no further job starts, and the context of those that run is
	// cancelled.
	Do func(ctx context.Context, worker int) error
}

// Run does all jobs with so many workers. It returns the first error, after all
// jobs that had started have ended. Jobs that wait for each other in a circle
// are an error before anything starts. A job that panics is an error, too: a
// [*PanicError], which names it.
func Run(ctx context.Context, workers int, jobs []Job) error {
	return Crew{Start: workers}.Run(ctx, jobs)
}

type node struct {
	*Job
	waits  int // how many of After have not ended
	before []*node
	way    int64 // Size, and the longest way of before
}

// graph is the state of a Run.
type graph struct {
	mu    sync.Mutex // guards what follows
	wake  *sync.Cond
	ready readyHeap
	held  map[string]int // how many share a lock; -1: one has it alone

	// parked are jobs that found a lock held, by that lock. When a lock is
	// released one of those that want it alone becomes ready again: all of them,
	// each time, would make many jobs of one lock cost the square of them. Those
	// that share it, of which there are few, become ready together.
	parked map[string]*waiting
	left   int
	err    error

	crew *crew
}

// waiting are the jobs that wait for one lock.
type waiting struct{ alone, shared readyHeap }

func newGraph(jobs []Job) (*graph, error) {
	g := &graph{held: map[string]int{}, parked: map[string]*waiting{}, left: len(jobs)}
	g.wake = sync.NewCond(&g.mu)
	byID := make(map[string]*node, len(jobs))
	nodes := make([]*node, len(jobs))
	for i := range jobs {
		j := &jobs[i]
		if byID[j.ID] != nil {
			return nil, fmt.Errorf("schedule: two jobs are called %q", j.ID)
		}
		nodes[i] = &node{Job: j}
		byID[j.ID] = nodes[i]
	}
	for _, n := range nodes {
		for _, id := range n.After {
			if b := byID[id]; b != nil {
				b.before = append(b.before, n)
				n.waits++
			}
		}
	}
	order, err := acyclic(nodes)
	if err != nil {
		return nil, err
	}
	for _, n := range slices.Backward(order) {
		for _, next := range n.before {
			n.way = max(n.way, next.way)
		}
		n.way += n.Size
	}
	for _, n := range nodes {
		if n.waits == 0 {
			g.ready = append(g.ready, n)
		}
	}
	heap.Init(&g.ready)
	return g, nil
}

// acyclic returns the jobs in an order in which they could run one by one. It finds
// those that can never start.
func acyclic(nodes []*node) ([]*node, error) {
	waits := make(map[*node]int, len(nodes))
	queue := make([]*node, 0, len(nodes))
	for _, n := range nodes {
		waits[n] = n.waits
		if n.waits == 0 {
			queue = append(queue, n)
		}
	}
	reached := 0
	for ; reached < len(queue); reached++ {
		for _, next := range queue[reached].before {
			if waits[next]--; waits[next] == 0 {
				queue = append(queue, next)
			}
		}
	}
	if reached == len(nodes) {
		return queue, nil
	}
	for _, n := range nodes {
		if waits[n] > 0 {
			return nil, fmt.Errorf("schedule: %q waits for itself by way of others", n.ID)
		}
	}
	return nil, nil // not reached: one of them waits
}

// take returns the best job that worker w can start, and waits for one. It returns
// nil when there will be none, or none for this worker.
func (g *graph) take(ctx context.Context, w int) *node {
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		if g.left == 0 || g.err != nil || ctx.Err() != nil || g.crew.leaves(w) {
			return nil
		}
		if len(g.ready) == 0 {
			g.crew.rests(w)
			g.wake.Wait()
			continue
		}
		n := heap.Pop(&g.ready).(*node)
		if g.blocked(n) {
			continue
		}
		for _, l := range n.Locks {
			g.held[l] = -1
		}
		for _, l := range n.Shared {
			g.held[l]++
		}
		g.crew.works(w)
		return n
	}
}

// blocked puts a job aside until a lock is released, if there is one that it has to
// wait for. Of its other locks those that are free may be what it was woken for:
// another one gets its turn.
func (g *graph) blocked(n *node) bool {
	at := func(l string) *waiting {
		if g.parked[l] == nil {
			g.parked[l] = &waiting{}
		}
		return g.parked[l]
	}
	alone := slices.IndexFunc(n.Locks, func(l string) bool { return g.held[l] != 0 })
	shared := slices.IndexFunc(n.Shared, func(l string) bool { return g.held[l] < 0 })
	switch {
	case alone >= 0:
		heap.Push(&at(n.Locks[alone]).alone, n)
	case shared >= 0:
		heap.Push(&at(n.Shared[shared]).shared, n)
	default:
		return false
	}
	for _, l := range slices.Concat(n.Locks, n.Shared) {
		if g.held[l] == 0 {
			g.unpark(l)
		}
	}
	return true
}

// unpark makes those ready that share a lock which is free now, and the best of
// those that want it alone.
func (g *graph) unpark(lock string) {
	w := g.parked[lock]
	if w == nil {
		return
	}
	for _, n := range w.shared {
		heap.Push(&g.ready, n)
		g.wake.Signal()
	}
	w.shared = nil
	if w.alone.Len() > 0 {
		heap.Push(&g.ready, heap.Pop(&w.alone))
		g.wake.Signal()
	}
	if w.alone.Len() == 0 {
		delete(g.parked, lock)
	}
}

func (g *graph) done(n *node, w int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left--
	g.crew.ended(w, err)
	if err != nil && g.err == nil {
		g.err = err
	}
	for _, l := range n.Locks {
		delete(g.held, l)
	}
	for _, l := range n.Shared {
		if g.held[l]--; g.held[l] == 0 {
			delete(g.held, l)
		}
	}
	for _, l := range slices.Concat(n.Locks, n.Shared) {
		if g.held[l] == 0 {
			g.unpark(l)
		}
	}
	for _, next := range n.before {
		if next.waits--; next.waits == 0 {
			heap.Push(&g.ready, next)
		}
	}
	g.crew.staff()
	g.wake.Broadcast()
}

func (g *graph) result(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return g.err
	}
	if g.left > 0 {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		return errors.New("schedule: jobs are left that nobody does")
	}
	return nil
}

// readyHeap orders jobs by rank, then by their way, then by name.
type readyHeap []*node

func (h readyHeap) Len() int      { return len(h) }
func (h readyHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h readyHeap) Less(i, j int) bool {
	a, b := h[i], h[j]
	return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(b.way, a.way), cmp.Compare(a.ID, b.ID)) < 0
}
func (h *readyHeap) Push(x any) { *h = append(*h, x.(*node)) }
func (h *readyHeap) Pop() any {
	old := *h
	n := old[len(old)-1]
	*h = old[:len(old)-1]
	return n
}
