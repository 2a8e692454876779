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

// A Job is a unit of work in a graph of jobs.
type Job struct {
	// ID is unique in the graph.
	ID string

	// After are the jobs that must have ended before. Jobs that are not in the graph count as
	// done.
	After []string

	// Locks are exclusive locks: no two jobs that have one of them run at the same time. They
	// may be names of tables that both would lock against each other. Jobs that have a lock in
	// Shared may run concurrently, but not with a job that has it in Locks. No lock is in both.
	Locks, Shared []string

	// Rank orders jobs that could start: the lowest first.
	Rank int

	// Size orders jobs of one rank: the one with the longest path first, so that no worker is
	// left alone with it at the end. The path of a job is its size plus the longest path of the
	// jobs that wait for it, in bytes of work.
	Size int64

	// Do runs the job on the given worker, one of 0 to workers-1. After an error no further job
	// starts, and the context of running jobs is cancelled.
	Do func(ctx context.Context, worker int) error
}

// Run runs all jobs with the given number of workers. It returns the first error, after all
// running jobs have ended. If jobs depend on each other in a circle, it returns an error before
// any job starts. A job that panics causes a [*guard.PanicError], which names it.
func Run(ctx context.Context, workers int, jobs []Job) error {
	return WorkerPool{Start: workers}.Run(ctx, jobs)
}

type node struct {
	*Job
	waits  int // number of jobs in After that have not ended
	before []*node
	way    int64 // length of the job's path: Size plus the longest path after it
}

// graph is the state of a Run.
type graph struct {
	mu    sync.Mutex // guards the fields below
	wake  *sync.Cond
	ready readyHeap
	held  map[string]int // number of jobs that share a lock; -1: one holds it exclusively

	// parked are jobs that found a lock held, by that lock. When a lock is released, one of the
	// jobs that want it exclusively becomes ready again; if all became ready each time, many
	// jobs with one lock would take quadratic time. Jobs that share it, which are few, become
	// ready together.
	parked map[string]*waiting
	left   int
	err    error

	pool *runningPool
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

// acyclic returns the jobs in an order in which they could run one by one. It returns an error
// if some can never start.
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

// take returns the best job that worker w can start; it waits until there is one. It returns
// nil if there will be none, or none for this worker.
func (g *graph) take(ctx context.Context, w int) *node {
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		if g.left == 0 || g.err != nil || ctx.Err() != nil || g.pool.leaves(w) {
			return nil
		}
		if len(g.ready) == 0 {
			g.pool.rests(w)
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
		g.pool.works(w)
		return n
	}
}

// blocked puts a job aside until a lock is released, if one of its locks is held. The job may
// have been woken for another of its locks that is free: a job that waits for that one is woken
// instead.
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

// unpark makes ready the jobs that share a free lock, and the best one of those that want it
// exclusively.
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
	g.pool.ended(w, err)
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
	g.pool.staff()
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
		return errors.New("schedule: jobs are left that never became ready")
	}
	return nil
}

// readyHeap orders jobs by rank, then by the length of their path, then by ID.
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
