package lab_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// childMode in the environment turns the test binary into an owner of the server
// that it names: it starts one, prints a child, and waits for its standard input
// to close before it stops it.
const childMode = "WEIR_LAB_TEST_CHILD"

// child is what an owner tells of itself.
type child struct {
	DSN     string
	PID     int
	DataDir string
	UID     int
}

func TestMain(m *testing.M) {
	engine := os.Getenv(childMode)
	if engine == "" {
		os.Exit(labtest.Main(m))
	}
	if err := own(engine); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func own(engine string) error {
	ctx, cancel := context.WithTimeout(context.Background(), labtest.Patience)
	defer cancel()
	c := child{UID: os.Geteuid()}
	var stop func(context.Context) error
	fast := lab.BrokerConfig{Durability: lab.Fast}
	switch engine {
	case "postgres":
		p, err := lab.StartPostgres(ctx, lab.PostgresConfig{Durability: lab.Fast})
		if err != nil {
			return err
		}
		stop, c.DSN, c.PID, c.DataDir = p.Stop, p.DSN("postgres"), p.PID(), p.DataDir()
	case "mariadb":
		m, err := lab.StartMariaDB(ctx, lab.MySQLConfig{Durability: lab.Fast, Light: true})
		if err != nil {
			return err
		}
		stop, c.DSN, c.PID, c.DataDir = m.Stop, m.DSN(""), m.PID(), m.DataDir()
	default:
		b, err := ownedBroker(ctx, engine, fast)
		if err != nil {
			return err
		}
		stop, c.DSN, c.PID, c.DataDir = b.Stop, b.URL(), b.PID(), b.DataDir()
	}
	if err := json.NewEncoder(os.Stdout).Encode(c); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return stop(ctx)
}

func ownedBroker(ctx context.Context, engine string, cfg lab.BrokerConfig) (broker, error) {
	switch engine {
	case "nats":
		return lab.StartNATS(ctx, cfg)
	case "redis":
		return lab.StartRedis(ctx, cfg)
	case "rabbitmq":
		return lab.StartRabbitMQ(ctx, lab.BrokerConfig{}) // the other tests start fast ones
	}
	return nil, fmt.Errorf("no engine %q", engine)
}

// require skips t where the engine is not installed.
func require(t *testing.T, engine string) {
	t.Helper()
	switch engine {
	case "postgres":
		labtest.RequirePostgres(t)
	case "mariadb":
		labtest.RequireMariaDB(t)
	case "nats":
		labtest.RequireNATS(t)
	case "redis":
		labtest.RequireRedis(t)
	case "rabbitmq":
		labtest.RequireRabbitMQ(t)
	default:
		t.Fatalf("no engine %q", engine)
	}
}

// startOwner runs this test binary as an owner. It is copied to where any user
// can reach it.
func startOwner(t *testing.T, engine, dir string, as *syscall.Credential) (*exec.Cmd, io.Closer, child) {
	t.Helper()
	require(t, engine)
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	home, bin := filepath.Join(dir, "home"), filepath.Join(dir, "owner")
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	labtest.WriteProgram(t, bin, self)
	if as != nil {
		if err := os.Chown(home, int(as.Uid), int(as.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(bin)
	cmd.Dir = home
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + home, "WEIR_LAB_DIR=" + home, childMode + "=" + engine}
	if cache, err := os.UserCacheDir(); err == nil && as == nil { // to initialise data anew is most of what its server costs
		cmd.Env = append(cmd.Env, "XDG_CACHE_HOME="+cache)
	}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		t.Fatalf("owner said nothing: %v", err)
	}
	var c child
	if err := json.Unmarshal(line, &c); err != nil {
		t.Fatalf("owner said %q: %v", line, err)
	}
	return cmd, stdin, c
}

func TestServerDiesWithKilledOwner(t *testing.T) {
	// RabbitMQ has a second process beside its own, and NATS has one at all.
	for _, engine := range []string{"postgres", "mariadb", "nats", "rabbitmq"} {
		t.Run(engine, func(t *testing.T) {
			if engine == "rabbitmq" {
				testkit.Long(t, "starts RabbitMQ")
			}
			dir := shortDir(t)
			t.Setenv("WEIR_LAB_DIR", filepath.Join(dir, "home"))
			cmd, _, c := startOwner(t, engine, dir, nil)
			if engine == "postgres" { // with a session, which is a process of its own
				connect(t, c.DSN)
			}
			all := below(t, cmd.Process.Pid)
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			// The kernel ends the server's first process, whose death its children
			// notice; Sweep ends what has not ended by itself.
			if _, err := os.Stat(c.DataDir); err != nil {
				t.Fatalf("data directory after the owner's death: %v, want it to wait for a sweep", err)
			}
			awaitEnd(t, c.PID)
			removed, err := lab.Sweep() // of other tests' servers, too, whose owners have died
			if !slices.Contains(removed, filepath.Dir(c.DataDir)) {
				t.Errorf("Sweep removed %v (%v), want %s among them", removed, err, filepath.Dir(c.DataDir))
			}
			if _, err := os.Stat(c.DataDir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("data directory after Sweep: %v", err)
			}
			for _, pid := range all {
				awaitEnd(t, pid)
			}
		})
	}
}

// below lists the processes that a process has started, and those that they
// have: at least one.
func below(t *testing.T, root int) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	children := make(map[int][]int)
	for _, e := range entries {
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue // no process, or one that has ended
		}
		var pid, parent int
		_, tail, _ := strings.Cut(string(stat), ") ")
		_, err1 := fmt.Sscan(string(stat), &pid)
		_, err2 := fmt.Sscanf(tail, "%1s %d", new(string), &parent)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatalf("%q: %v", stat, err)
		}
		children[parent] = append(children[parent], pid)
	}
	var all []int
	for queue := []int{root}; len(queue) > 0; queue = queue[1:] {
		all = append(all, children[queue[0]]...)
		queue = append(queue, children[queue[0]]...)
	}
	if len(all) == 0 {
		t.Fatalf("process %d has started nothing", root)
	}
	return all
}

// awaitEnd returns when a process of another parent has ended.
func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(labtest.Patience.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n != 1 || err != nil {
			t.Fatalf("process %d has not ended (%v)", pid, err)
		}
		return
	}
}

func TestServersOfAnOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("the other tests run as an ordinary user already")
	}
	u, err := user.Lookup("nobody")
	if err != nil {
		t.Skip(err)
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	for _, engine := range []string{"postgres", "mariadb", "nats", "redis", "rabbitmq"} {
		t.Run(engine, func(t *testing.T) {
			if engine == "rabbitmq" {
				testkit.Long(t, "starts RabbitMQ")
			}
			cmd, stdin, c := startOwner(t, engine, shortDir(t), &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)})
			if c.UID != int(uid) {
				t.Errorf("owner runs as %d, want %d", c.UID, uid)
			}
			if err := reach(t, engine, c.DSN); err != nil {
				t.Errorf("connect: %v", err)
			}
			if err := stdin.Close(); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("owner ended with %v", err)
			}
			if _, err := os.Stat(c.DataDir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("data directory after Stop: %v", err)
			}
		})
	}
}

// reach uses a server once.
func reach(t *testing.T, engine, dsn string) error {
	t.Helper()
	ctx := t.Context()
	switch engine {
	case "mariadb":
		_, err := tryMySQL(t, clientConfig(t, dsn))
		return err
	case "nats":
		return natsClient{fixedURL(dsn)}.put(ctx, "k", "v")
	case "redis":
		return redisClient{fixedURL(dsn)}.put(ctx, "k", "v")
	case "rabbitmq":
		return rabbitClient{fixedURL(dsn)}.put(ctx, "k", "v")
	}
	connect(t, dsn)
	return nil
}
