package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Node is one process of a cluster. It has the methods of every lab server (Kill, Restart,
// Pause, Resume, PID, Addr, LogTail) and a number. Its methods are safe for concurrent use,
// except Stop, which the cluster calls.
type Node struct {
	broker
	number int
	binary string
	args   func() []string
}

// Number is the number of the node in its cluster, from 1.
func (n *Node) Number() int { return n.number }

// start starts the process and returns when it listens on its port. Only fleet.Await finds out
// whether the cluster has a leader.
func (n *Node) start(ctx context.Context) error {
	return n.run(ctx, n.binary, n.args(), func(p *process) bool { return p.listensOn(n.port) })
}

// loopback is an address on the loopback.
func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// fleet is several processes of one program that form one service. One goroutine creates it;
// after that, its methods are safe for concurrent use.
type fleet struct {
	title   string
	version string
	nodes   []*Node
	held    *Ports // of all nodes
	// ready is the URL that answers 200 when a node can serve.
	ready func(*Node) string
}

// fleetPlan describes a cluster to start.
type fleetPlan struct {
	title, user string
	nodes       int
	more        int // ports of each node other than the one for clients
	cfg         BrokerConfig
	binary      string
	procs       int // processors that each node may use; 0: an equal share
	// args returns the arguments of a node. ports has the ports of all nodes, of node N at
	// index N-1, with the one for clients first.
	args  func(ports [][]int, n *Node) []string
	ready func(*Node) string
}

// begin starts all nodes concurrently and returns when each of them can serve. If another
// process takes a port first, the whole cluster is started again, since every node knows all
// ports. A failure leaves nothing behind.
func (f *fleet) begin(ctx context.Context, p fleetPlan) error {
	f.title, f.ready = p.title, p.ready
	if p.procs == 0 {
		p.procs = max(1, runtime.NumCPU()/p.nodes)
	}
	for attempt := 1; ; attempt++ {
		err := f.attempt(ctx, p)
		if err == nil {
			return nil
		}
		taken := strings.Contains(err.Error(), portTaken) || slices.ContainsFunc(f.nodes, func(n *Node) bool { return n.log != nil && strings.Contains(n.LogTail(50), portTaken) })
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
		err = errors.Join(err, f.Stop(stopCtx))
		cancel()
		if !taken || attempt == bindAttempts || ctx.Err() != nil {
			return err
		}
	}
}

// abortTimeout is how long a cluster that did not start may take to stop.
const abortTimeout = 5 * time.Second

func (f *fleet) attempt(ctx context.Context, p fleetPlan) error {
	f.nodes = nil
	var err error
	if f.held, err = ReservePorts(p.nodes * (1 + p.more)); err != nil {
		return err
	}
	each := slices.Collect(slices.Chunk(f.held.numbers, 1+p.more))
	for i := range p.nodes {
		n := &Node{number: i + 1, binary: p.binary}
		n.aux, n.version = each[i][1:], f.version
		n.args = func() []string { return p.args(each, n) }
		f.nodes = append(f.nodes, n)
	}
	errs := make([]error, p.nodes)
	var starts sync.WaitGroup
	for i, n := range f.nodes {
		cfg := p.cfg
		cfg.Port = each[i][0]
		starts.Go(func() {
			prepare := func(context.Context) (err error) {
				n.env = append(n.env, fmt.Sprintf("GOMAXPROCS=%d", p.procs))
				n.binary, err = n.within(n.binary)
				return err
			}
			if errs[i] = n.open(ctx, fmt.Sprintf("%s %d", p.title, n.number), p.user, cfg, prepare, n.start); errs[i] != nil {
				n.stopped = true // open has left nothing behind
			}
		})
	}
	starts.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := f.Await(ctx); err != nil {
		return err
	}
	for _, n := range f.nodes {
		if !n.proc.running() {
			return fmt.Errorf("%s %d ended by itself: %v\n%s", f.title, n.number, n.proc.err, n.LogTail(10))
		}
	}
	return nil
}

// Await waits until every running node reports that it can serve, for example after Restart of
// one of them.
func (f *fleet) Await(ctx context.Context) error {
	for _, n := range f.nodes {
		var last error
		err := poll(ctx, func() bool {
			select {
			case <-n.Done():
				return true
			default:
			}
			last = probeHTTP(ctx, f.ready(n))
			return last == nil
		})
		if err != nil {
			return fmt.Errorf("await %s %d: %w (%w)\n%s", f.title, n.number, err, last, n.LogTail(10))
		}
	}
	return nil
}

// probeHTTP requests a URL once and returns nil if the status is 200.
func probeHTTP(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("ask %s: %w", url, err)
	}
	// A separate transport keeps no connection open, which a paused node would hold.
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return err
	}
	if err := res.Body.Close(); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("ask %s: %s", url, res.Status)
	}
	return nil
}

// Nodes are the processes of the cluster, by number.
func (f *fleet) Nodes() []*Node { return slices.Clone(f.nodes) }

// Addrs are the addresses of all nodes for clients, by number.
func (f *fleet) Addrs() []string {
	var all []string
	for _, n := range f.nodes {
		all = append(all, n.Addr())
	}
	return all
}

// PIDs are the IDs of the running processes.
func (f *fleet) PIDs() []int {
	var all []int
	for _, n := range f.nodes {
		all = append(all, n.PID())
	}
	return all
}

// Version is the program's version.
func (f *fleet) Version() string { return f.version }

// Stop stops all nodes concurrently and removes their directories. If ctx ends first, they are
// killed instead. A second call does nothing.
func (f *fleet) Stop(ctx context.Context) error {
	errs := make([]error, len(f.nodes))
	var stops sync.WaitGroup
	for i, n := range f.nodes {
		stops.Go(func() { errs[i] = n.Stop(ctx) })
	}
	stops.Wait()
	return errors.Join(append(errs, f.held.Release())...)
}
