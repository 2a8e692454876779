package lab

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// EnvRedis names the redis-server program.
const EnvRedis = "WEIR_REDIS_SERVER"

var redisProgram = brokerProgram{
	title: "Redis", env: EnvRedis, name: "redis-server", late: []string{"/usr/sbin"},
	hint: "apt-get install redis-server",
}

// FindRedis returns the path and version of redis-server: the first of given (if not empty),
// $WEIR_REDIS_SERVER, the PATH, /usr/sbin. The error is a *NotInstalledError if there is none.
func FindRedis(ctx context.Context, given string) (path, version string, err error) {
	if path, err = redisProgram.find(given); err != nil {
		return "", "", err
	}
	version, err = redisProgram.ask(ctx, path)
	return path, version, err
}

// Redis is a running Redis server that belongs to this process. Its methods are
// safe for concurrent use.
type Redis struct {
	broker
	binary string
}

// StartRedis starts a server with an append-only file, and returns when it answers, in about 50
// ms. With Prod it flushes each write before it answers (appendfsync always), with Fast never.
// Cancelling ctx aborts the start; it does not stop a running server: call Stop.
func StartRedis(ctx context.Context, cfg BrokerConfig) (*Redis, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure Redis: %w", err)
	}
	binary, version, err := FindRedis(ctx, cfg.Program)
	if err != nil {
		return nil, err
	}
	r := &Redis{binary: binary}
	r.version = version
	if err := r.open(ctx, "Redis", "redis", cfg, r.prepare, r.start); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *Redis) prepare(context.Context) (err error) {
	r.binary, err = r.within(r.binary)
	return err
}

func (r *Redis) start(ctx context.Context) error {
	if err := r.choosePorts(0); err != nil {
		return err
	}
	conf, err := r.write("redis.conf", r.config())
	if err != nil {
		return err
	}
	return r.serve(ctx, r.binary, []string{conf}, func(ctx context.Context, _ string) error {
		return probeRedis(ctx, r.Socket())
	})
}

func (r *Redis) config() string {
	own := map[string]string{
		"bind":           r.Host(),
		"port":           strconv.Itoa(r.port),
		"unixsocket":     r.Socket(),
		"unixsocketperm": "777",
		"dir":            r.data,
		"save":           `""`,
		"appendonly":     "yes",
		"appendfsync":    "always",
	}
	if r.cfg.Durability == Fast {
		own["appendfsync"] = "no"
	}
	if r.cfg.Password != "" {
		own["requirepass"] = r.cfg.Password
	}
	var b strings.Builder
	settings := r.settings(own)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&b, "%s %s\n", name, settings[name])
	}
	return b.String()
}

// probeRedis sends PING. A server that is still reading its file answers that it is loading;
// one that asks for a password is ready.
func probeRedis(ctx context.Context, socket string) error {
	conn, err := dialProbe(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	return readRedis(conn)
}

// readRedis reads the answer to PING.
func readRedis(r io.Reader) error {
	line, err := bufio.NewReader(io.LimitReader(r, 1<<10)).ReadString('\n')
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if !strings.HasPrefix(line, "+PONG") && !strings.HasPrefix(line, "-NOAUTH") {
		return fmt.Errorf("not ready: %s", strings.TrimSpace(line))
	}
	return nil
}

// Socket is the path of the server's Unix socket.
func (r *Redis) Socket() string { return filepath.Join(r.sock, "redis.sock") }

// URL is the address of the server's first database for clients. It contains the password: do
// not log it.
func (r *Redis) URL() string {
	u := url.URL{Scheme: "redis", Host: r.Addr(), Path: "/0"}
	if r.cfg.Password != "" {
		u.User = url.UserPassword("", r.cfg.Password)
	}
	return u.String()
}
