package storm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/kvd/replica"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
	"github.com/weirdb/weir/kv"
)

// stormCluster is a cluster of processes whose members, settings and versions
// change.
type stormCluster struct {
	t      *testing.T
	preset string
	mixed  bool // with an older version, until it is upgraded
	dir    string

	mu     sync.Mutex // guards random, nodes and next
	random *rand.Rand
	nodes  []*stormNode // members
	next   uint64       // the number of the next new one
}

// stormNode is one replica.
type stormNode struct {
	t      *testing.T
	member kv.Member
	admin  string
	data   string
	join   bool

	mu    sync.Mutex // guards what follows
	cmd   *exec.Cmd
	done  chan struct{}
	off   time.Duration // of its wall clock
	hangs bool
	older bool // it runs the older version, which has no ailments
}

func newStormCluster(t *testing.T, preset string, mixed bool, seed uint64) *stormCluster {
	t.Helper()
	c := &stormCluster{t: t, preset: preset, mixed: mixed, dir: t.TempDir(), random: rand.New(rand.NewPCG(seed, 1)), next: 1}
	t.Cleanup(func() {
		c.mu.Lock()
		nodes := c.nodes
		c.mu.Unlock()
		for _, n := range nodes {
			n.kill()
		}
		if t.Failed() {
			t.Log(c.describe())
		}
	})
	for range 3 {
		c.nodes = append(c.nodes, c.make())
	}
	for _, n := range c.nodes {
		c.start(n)
	}
	c.heal()
	return c
}

// make makes the next replica, without starting it.
func (c *stormCluster) make() *stormNode {
	a := labtest.Addrs(c.t, 3)
	n := &stormNode{
		t: c.t, member: kv.Member{ID: c.next, Addr: a[0], Client: a[1]}, admin: a[2],
		data: filepath.Join(c.dir, fmt.Sprint(c.next)), join: c.next > 3,
	}
	c.next++
	return n
}

func (n *stormNode) id() uint64 { return n.member.ID }

// start starts a replica with settings, and of a version, that are drawn anew.
func (c *stormCluster) start(n *stormNode) {
	c.mu.Lock()
	var peers []string
	list := c.nodes
	if !slices.Contains(list, n) {
		list = append(list[:len(list):len(list)], n)
	}
	for _, m := range list {
		peers = append(peers, fmt.Sprintf("%d=%s/%s", m.id(), m.member.Addr, m.member.Client))
	}
	args := []string{
		"kv", "serve", "--id=" + fmt.Sprint(n.id()), "--data=" + n.data, "--peers=" + strings.Join(peers, ","), "--resp=" + n.member.Client,
		"--admin=" + n.admin, "--preset=" + c.preset, "--snapshot-bytes=1000000",
	}
	if n.join {
		args = append(args, "--join")
	}
	program, older := os.Args[0], false
	if c.mixed {
		older = n.id()%2 == 1 || c.random.IntN(2) == 0 // never all of them new
	} else {
		election := []string{"150ms", "300ms", "600ms", "1500ms"}[c.random.IntN(4)]
		args = append(args, "--election-timeout="+election)
	}
	c.mu.Unlock()
	if older {
		program = *stormOld
	}
	n.launch(program, older, args)
}

func (n *stormNode) launch(program string, older bool, args []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	log, err := os.OpenFile(n.data+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.t.Error(err)
		return
	}
	defer log.Close()
	n.cmd, n.done, n.older = exec.Command(program, args...), make(chan struct{}), older
	n.cmd.Env = append(os.Environ(), asReplica+"=1", "GOMAXPROCS=1")
	n.cmd.Stdout, n.cmd.Stderr = log, log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		n.t.Error(err)
		return
	}
	go func(cmd *exec.Cmd, done chan struct{}) {
		defer close(done)
		_ = cmd.Wait() // killed, mostly
	}(n.cmd, n.done)
}

func (n *stormNode) signal(s os.Signal) (done chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd == nil || n.cmd.Process == nil {
		done = make(chan struct{})
		close(done)
		return done
	}
	_ = n.cmd.Process.Signal(s) // it may have ended
	return n.done
}

func (n *stormNode) kill()   { <-n.signal(syscall.SIGKILL) }
func (n *stormNode) pause()  { n.signal(syscall.SIGSTOP) }
func (n *stormNode) resume() { n.signal(syscall.SIGCONT) }

// stop ends a replica in order, or, if its disk hangs, at once.
func (n *stormNode) stop() {
	select {
	case <-n.signal(syscall.SIGTERM):
	case <-time.After(5 * time.Second):
		n.kill()
	}
}

// ail changes what ails a replica.
func (n *stormNode) ail(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
	hangs := 0
	if n.hangs {
		hangs = 1
	}
	if err := os.WriteFile(n.data+".ail", fmt.Appendf(nil, ailments, n.off, hangs), 0o600); err != nil {
		n.t.Error(err)
	}
}

func (c *stormCluster) members() []*stormNode {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*stormNode(nil), c.nodes...)
}

func (c *stormCluster) pick(random *rand.Rand) *stormNode {
	list := c.members()
	return list[random.IntN(len(list))]
}

func (c *stormCluster) addrs() []string {
	var all []string
	for _, n := range c.members() {
		all = append(all, n.member.Addr)
	}
	return all
}

// leader is who leads, as some replica says; otherwise it is other.
func (c *stormCluster) leader(other *stormNode) *stormNode {
	for _, n := range c.members() {
		s, err := n.report()
		if err != nil || s.Leader == 0 {
			continue
		}
		for _, m := range c.members() {
			if m.id() == s.Leader {
				return m
			}
		}
	}
	return other
}

var stormHTTP = http.Client{Timeout: time.Second}

// report is what a replica says of itself.
func (n *stormNode) report() (r replica.Report, err error) {
	answer, err := stormHTTP.Get("http://" + n.admin + "/status.json")
	if err != nil {
		return r, err
	}
	defer answer.Body.Close()
	err = json.NewDecoder(answer.Body).Decode(&r)
	return r, err
}

// heal ends all faults and waits until every member is ready.
func (c *stormCluster) heal() {
	for _, n := range c.members() {
		n.resume()
		n.ail(func() { n.hangs = false })
	}
	for _, n := range c.members() {
		testkit.Await(c.t, func() bool {
			r, err := n.report()
			return err == nil && r.Ready
		}, func() string { return fmt.Sprintf("replica %d is not ready\n%s", n.id(), c.describe()) })
	}
}

// upgrade gives all replicas this version, one after the other.
func (c *stormCluster) upgrade() {
	c.mu.Lock()
	was := c.mixed
	c.mixed = false
	c.mu.Unlock()
	if !was {
		return
	}
	for _, n := range c.members() {
		n.stop()
		c.start(n)
		c.heal()
	}
}

// replace puts a new replica in the place of n, as an operator does who repeats
// what was refused. If time is over before, the new one may be a learner, and goes.
func (c *stormCluster) replace(ctx context.Context, n *stormNode) bool {
	c.mu.Lock()
	x := c.make()
	c.mu.Unlock()
	c.start(x)
	client, err := kv.Open(c.t.Context(), c.addrs(), kv.Options{})
	if err != nil {
		c.t.Error(err)
		return false
	}
	defer client.Close()
	// Once it has begun it is carried through: the faults wait for it.
	change, cancel := context.WithTimeout(c.t.Context(), labtest.Patience)
	defer cancel()
	for _, g := range []kv.MemberChange{{Kind: kv.AddLearner, Member: x.member}, {Kind: kv.Replace, Old: n.id(), Member: kv.Member{ID: x.id()}}} {
		for {
			err := client.Configure(change, g)
			if err == nil || c.inForce(g) { // an older version answers only who asked first
				break
			}
			if change.Err() != nil {
				c.t.Errorf("change %+v: %v\n%s", g, err, c.describe())
				x.kill()
				return false
			}
			rest(change, 100*time.Millisecond)
		}
	}
	c.mu.Lock()
	for i := range c.nodes {
		if c.nodes[i] == n {
			c.nodes[i] = x
		}
	}
	c.mu.Unlock()
	n.kill()
	_ = ctx
	return true
}

// inForce reports that a replica which is ready says that a change was made.
func (c *stormCluster) inForce(g kv.MemberChange) bool {
	for _, n := range c.members() {
		r, err := n.report()
		if err != nil || !r.Ready {
			continue
		}
		added, old := false, false
		for _, m := range r.Members {
			added = added || m.ID == g.Member.ID && (g.Kind == kv.AddLearner || !m.Learner)
			old = old || m.ID == g.Old
		}
		if added && !old {
			return true
		}
	}
	return false
}

// describe is what the replicas say, for a failure.
func (c *stormCluster) describe() string {
	var b strings.Builder
	for _, n := range c.members() {
		r, err := n.report()
		n.mu.Lock()
		fmt.Fprintf(&b, "replica %d, older %v, clock off by %v: ", n.id(), n.older, n.off)
		n.mu.Unlock()
		if err != nil {
			fmt.Fprintln(&b, err)
		} else {
			fmt.Fprintf(&b, "%s in term %d, leader %d, ready %v %s, applied %d of %d, durable %d\n", r.Role, r.Term, r.Leader, r.Ready, r.Why, r.Applied, r.Commit, r.Durable)
		}
		text, _ := os.ReadFile(n.data + ".log")
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		for _, l := range lines[max(0, len(lines)-8):] {
			fmt.Fprintln(&b, "   ", l)
		}
	}
	return b.String()
}
