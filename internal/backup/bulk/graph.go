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
	// both would lock against each other.
	Locks []string

	// Rank orders jobs that could start: the lowest first.
	Rank int

	// Size orders jobs of one rank: the largest first, so that no worker is
	// left alone with it at the end.
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
}

// graph is the state of a Run.
type graph struct {
	mu    sync.Mutex // guards what follows
	wake  *sync.Cond
	ready readyHeap
	held  map[string]bool

	// parked are jobs that found a lock held, by that lock. When a lock is
	// released one of those that wait for it becomes ready again: all of them,
	// each time, would make many jobs that share a lock cost the square of them.
	parked map[string]*readyHeap
	left   int
	err    error

	crew *crew
}

func newGraph(jobs []Job) (*graph, error) {
	g := &graph{held: map[string]bool{}, parked: map[string]*readyHeap{}, left: len(jobs)}
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
	if err := acyclic(nodes); err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if n.waits == 0 {
			g.ready = append(g.ready, n)
		}
	}
	heap.Init(&g.ready)
	return g, nil
}

// acyclic counts how many jobs can ever start.
func acyclic(nodes []*node) error {
	waits := make(map[*node]int, len(nodes))
	var queue []*node
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
		return nil
	}
	for _, n := range nodes {
		if waits[n] > 0 {
			return fmt.Errorf("schedule: %q waits for itself by way of others", n.ID)
		}
	}
	return nil
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
		if i := slices.IndexFunc(n.Locks, func(l string) bool { return g.held[l] }); i >= 0 {
			g.park(n, n.Locks[i])
			continue
		}
		for _, l := range n.Locks {
			g.held[l] = true
		}
		g.crew.works(w)
		return n
	}
}

// park puts a job aside until a lock is released. Of its other locks those that
// are free may be what it was woken for: another one gets its turn.
func (g *graph) park(n *node, lock string) {
	if g.parked[lock] == nil {
		g.parked[lock] = &readyHeap{}
	}
	heap.Push(g.parked[lock], n)
	for _, l := range n.Locks {
		if !g.held[l] {
			g.unpark(l)
		}
	}
}

// unpark makes one of the jobs that wait for a lock ready, the best.
func (g *graph) unpark(lock string) {
	waiting := g.parked[lock]
	if waiting == nil {
		return
	}
	heap.Push(&g.ready, heap.Pop(waiting))
	g.wake.Signal()
	if waiting.Len() == 0 {
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
	for _, l := range n.Locks {
		g.unpark(l)
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

// readyHeap orders jobs by rank, then by size, then by name.
type readyHeap []*node

func (h readyHeap) Len() int      { return len(h) }
func (h readyHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h readyHeap) Less(i, j int) bool {
	a, b := h[i], h[j]
	return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(b.Size, a.Size), cmp.Compare(a.ID, b.ID)) < 0
}
func (h *readyHeap) Push(x any) { *h = append(*h, x.(*node)) }
func (h *readyHeap) Pop() any {
	old := *h
	n := old[len(old)-1]
	*h = old[:len(old)-1]
	return n
}
