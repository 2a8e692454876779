package killtest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// What the clients do; they also run transactions.
const (
	plainWrites  = "plain"
	hintedWrites = "hinted"
	// transactions are the third.
)

var driverKinds = []string{plainWrites, hintedWrites, transactions}

const (
	appUser     = "app" // without the privilege to write while MariaDB is read-only
	driversCalm = 20    // acknowledged writes of each client before and after each event
)

// A saying is one report of a client, a line of JSON.
type saying struct {
	Driver, Kind string
	// Did is one of: "ok", a write was acknowledged; "write", it failed; "not committed", an
	// error came before COMMIT was sent; "read" or "connect", these failed; "complaint", the
	// client saw something that must never happen.
	Did  string
	ID   int64 // of the write
	Code string
	Text string
}

// A driverWrite is the outcome of a write, as its client saw it.
type driverWrite struct {
	parts   byte
	outcome outcome
}

// A driverClient has the counts of a client of one driver that writes in one way.
type driverClient struct {
	tally
	writes, refusedWrites, unknownWrites int
	all                                  map[string]int // errors, over all events
}

// A driverRun has all clients of one engine, and the outcomes that they saw.
type driverRun struct {
	t      *testing.T
	engine string
	weir   *weir

	mu         sync.Mutex
	clients    map[[2]string]*driverClient // guarded by mu: by driver and kind
	writes     map[int64]driverWrite       // guarded by mu
	owners     map[int64]string            // guarded by mu: the drivers of writes
	complaints []string                    // guarded by mu
	samples    map[string]string           // guarded by mu: an error's text, by driver and code
}

// TestDriversInAFailover lets clients with many drivers, in Go, Python, Java and Node.js, write
// through weir while the primary changes, by a switchover and by a kill. No connection attempt
// may fail, each acknowledged write must exist once and completely, and each session must have
// the settings that its client made. scripts/drivers installs the drivers. WEIR_DRIVERS_ROUNDS
// is the number of rounds; the table of results is appended to the file that WEIR_DRIVERS_TABLE
// names.
func TestDriversInAFailover(t *testing.T) {
	testkit.Long(t, "starts clients in four languages")
	rounds := 1
	if text := os.Getenv("WEIR_DRIVERS_ROUNDS"); text != "" {
		if _, err := fmt.Sscan(text, &rounds); err != nil {
			t.Fatalf("WEIR_DRIVERS_ROUNDS=%s: %v", text, err)
		}
	}
	for i := range engines {
		e := &engines[i]
		t.Run(e.name, func(t *testing.T) {
			if rounds == 1 {
				t.Parallel()
			}
			driversInAFailover(t, e, rounds)
		})
	}
}

func driversInAFailover(t *testing.T, e *engine, rounds int) {
	s := newSuccession(t, e, 1)
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	defer cancel()
	user, db := appUser, database
	switch server := s.server.(type) {
	case *lab.MySQL:
		s.must(server.Exec(ctx, "CREATE TABLE "+database+".written (id BIGINT NOT NULL, part INT NOT NULL, KEY (id))",
			"CREATE USER "+appUser+"@'%'", "GRANT ALL ON "+database+".* TO "+appUser+"@'%'"))
	default:
		user, db = "postgres", "postgres"
		s.must(onPostgres(ctx, server, func(conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "CREATE TABLE written (id bigint NOT NULL, part int NOT NULL); CREATE INDEX ON written (id)")
			return err
		}))
	}
	r := &driverRun{
		t: t, engine: e.name, weir: s.weir, clients: map[[2]string]*driverClient{}, writes: map[int64]driverWrite{},
		owners: map[int64]string{}, samples: map[string]string{},
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("weir:\n%s", s.weir.log.String())
		}
	})
	host, port, err := net.SplitHostPort(s.front.Addr())
	s.must(err)
	want := 0
	var ends []func()
	end := func() {
		for _, f := range ends {
			f()
		}
		ends = nil
	}
	defer end()
	for i, g := range guests(t, e.name) {
		want += g.clients
		ends = append(ends, r.host(g, e.name, host, port, user, db, strconv.Itoa((i+1)*1e9)))
	}
	for i, texts := range []bool{false, true} {
		want += len(driverKinds)
		ends = append(ends, r.natives(e, s.front.Addr(), user, texts, int64(i+100)*1e9))
	}
	testkit.Eventually(t, "writes by each client", func() bool { return len(r.list()) == want })

	events := []string{switchover, crash}
	met := map[string]map[[2]string]*affair{}
	for range rounds {
		for _, event := range events {
			r.calm(event, "before it")
			for _, c := range r.list() {
				c.reset()
			}
			s.change(event, func() { r.calm(event, "after it") })
			r.collect(event, met)
		}
	}
	end()
	v := r.judge(s)
	if path := os.Getenv("WEIR_DRIVERS_TABLE"); path != "" {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		s.must(err)
		_, err = f.WriteString(r.table(events, rounds, met, v))
		s.must(errors.Join(err, f.Close()))
	}
}

// change makes the standby the primary. until returns when clients are served again.
func (s *storm) change(event string, until func()) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), labtest.Patience)
	defer cancel()
	old := s.server
	m, mariadb := old.(*lab.MySQL)
	switch {
	case event == crash:
		old.Kill()
	case mariadb: // it keeps running, read-only
		s.must(m.Exec(ctx, "SET GLOBAL read_only = 1"))
	default: // it sends its standby what that lacks
		s.must(old.(heir).Stop(ctx))
	}
	s.promote()
	until()
	if event == switchover && !mariadb {
		s.line.spare = old.(heir).Port()
		return
	}
	s.bury(old)
}

// A guest is a client program in another language, with that language's drivers.
type guest struct {
	command []string
	clients int
}

// guests returns the guests that are installed. scripts/setup does not install them, so if they
// are missing their part is skipped, in CI too. The clients in Go always run.
func guests(t *testing.T, engine string) (found []guest) {
	t.Helper()
	home, err := filepath.Abs("../../../bin/tools/drivers")
	if err != nil {
		t.Fatal(err)
	}
	scripts := filepath.Join("testdata", "drivers")
	// How many drivers there are for each engine.
	for _, g := range []struct {
		language, needs, program string
		postgres, mariadb        int
		command                  []string
	}{
		{"python", "python/versions", filepath.Join(home, "python/bin/python"), 3, 3, []string{filepath.Join(scripts, "client.py")}},
		{"java", "java/versions", "java", 1, 2, []string{"-XX:TieredStopAtLevel=1", "-Xmx128m", "-cp", filepath.Join(home, "java/libs/*"), filepath.Join(scripts, "Client.java")}},
		{"node", "node/versions", "node", 1, 2, []string{filepath.Join(scripts, "client.js")}},
	} {
		_, err := os.Stat(filepath.Join(home, g.needs))
		if path, missing := exec.LookPath(g.program); err == nil && missing == nil {
			n := g.postgres
			if engine == "mariadb" {
				n = g.mariadb
			}
			found = append(found, guest{append([]string{path}, g.command...), n * len(driverKinds)})
			continue
		}
		t.Run(g.language, func(t *testing.T) { t.Skipf("the drivers of %s are not installed: scripts/drivers", g.language) })
	}
	return found
}

// host starts a guest, and returns a function that ends it.
func (r *driverRun) host(g guest, args ...string) (end func()) {
	r.t.Helper()
	cmd := exec.Command(g.command[0], append(g.command[1:], args...)...)
	home := filepath.Join("..", "..", "..", "bin", "tools", "drivers", "node", "node_modules")
	if path, err := filepath.Abs(home); err == nil {
		cmd.Env = append(os.Environ(), "NODE_PATH="+path, "PYTHONDONTWRITEBYTECODE=1")
	}
	var log tail
	cmd.Stderr = &log
	in, err := cmd.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	heard := make(chan error, 1)
	go func() { heard <- r.listen(out) }()
	return func() {
		_ = in.Close() // which ends it
		late := time.AfterFunc(labtest.Patience, func() { _ = cmd.Process.Kill() })
		err := <-heard
		err = errors.Join(err, cmd.Wait())
		if !late.Stop() || err != nil {
			r.t.Errorf("%v: %v\n%s", g.command, err, log.String())
		}
	}
}

func (r *driverRun) listen(out io.Reader) error {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var s saying
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			_, _ = io.Copy(io.Discard, out) // so that it does not block
			return fmt.Errorf("%q: %w", lines.Text(), err)
		}
		r.hear(s)
	}
	return lines.Err()
}

// hear records a client's report.
func (r *driverRun) hear(s saying) {
	key := [2]string{s.Driver, s.Kind}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.clients[key]
	if c == nil {
		c = &driverClient{all: map[string]int{}}
		c.reset()
		r.clients[key] = c
	}
	w := driverWrite{parts: partRow}
	if s.Kind == transactions {
		w.parts |= partTwin
	}
	switch s.Did {
	case "ok":
		c.succeeded()
		c.writes++
		w.outcome = acked
	case "write", "not committed":
		w.outcome = refused
		if s.Did == "write" {
			w.outcome = judge(r.errorOf(s))
		}
		if w.outcome == unknown {
			c.unknownWrites++
		} else {
			c.refusedWrites++
		}
	case "complaint":
		r.complaints = append(r.complaints, fmt.Sprintf("%s, %s: %s", s.Driver, s.Kind, s.Text))
		return
	}
	if s.ID != 0 {
		r.writes[s.ID], r.owners[s.ID] = w, s.Driver
	}
	if s.Did == "ok" {
		return
	}
	what := s.Code
	if s.Did == "read" || s.Did == "connect" {
		what += " (" + s.Did + ")"
	}
	if s.Did == "connect" {
		c.noConnection()
	}
	c.failedAs(what)
	c.all[what]++
	if name := s.Driver + ": " + what; r.samples[name] == "" {
		r.samples[name] = s.Text
	}
}

// errorOf returns an error with the server's code.
func (r *driverRun) errorOf(s saying) error {
	if s.Code == "lost" {
		return errors.New(s.Text)
	}
	if r.engine == "postgres" {
		return &pgconn.PgError{Code: s.Code, Message: s.Text}
	}
	n, err := strconv.ParseUint(s.Code, 10, 16)
	if err != nil {
		return err
	}
	return &mysql.MySQLError{Number: uint16(n), Message: s.Text}
}

func (r *driverRun) list() map[[2]string]*driverClient {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.clients)
}

// calm waits until each client has had some writes acknowledged.
func (r *driverRun) calm(event, when string) {
	r.t.Helper()
	before := map[[2]string]int{}
	clients := r.list()
	for key, c := range clients {
		before[key] = c.count()
	}
	for key, c := range clients {
		testkit.Await(r.t, func() bool { return c.count() >= before[key]+driversCalm }, func() string {
			_ = r.weir.signal(syscall.SIGQUIT) // prints its goroutines
			<-r.weir.done
			return fmt.Sprintf("%s: %s of %s %s; all so far:\n%s", event, key[1], key[0], when, r)
		})
	}
}

// String lists the errors of each client in the current event.
func (r *driverRun) String() string {
	var b strings.Builder
	for key, c := range r.list() {
		c.mu.Lock()
		fmt.Fprintf(&b, "%s, %s: %d acknowledged, the last %v ago, errors %v\n", key[0], key[1], c.done, time.Since(c.at).Round(time.Millisecond), c.errs)
		c.mu.Unlock()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, text := range r.samples {
		fmt.Fprintf(&b, "%s, for example %s\n", name, text)
	}
	return b.String()
}

// collect adds the results of an event.
func (r *driverRun) collect(event string, met map[string]map[[2]string]*affair) {
	r.t.Helper()
	if met[event] == nil {
		met[event] = map[[2]string]*affair{}
	}
	for key, c := range r.list() {
		a := met[event][key]
		if a == nil {
			a = &affair{errs: map[string]int{}}
			met[event][key] = a
		}
		c.mu.Lock()
		a.gaps, a.refused = append(a.gaps, c.gap), a.refused+c.refused
		for code, n := range c.errs {
			a.errs[code] += n
		}
		if c.refused > 0 {
			r.t.Errorf("%s, %s, %s: %d attempts to connect failed: %v", event, key[0], key[1], c.refused, c.errs)
		}
		c.mu.Unlock()
	}
}

// natives lets clients with Go's driver write until end is called.
func (r *driverRun) natives(e *engine, address, user string, texts bool, first int64) (end func()) {
	name := map[string][2]string{
		"postgres": {"pgx", "pgx, simple protocol"},
		"mariadb":  {"go-sql-driver/mysql, prepared", "go-sql-driver/mysql"},
	}[e.name][map[bool]int{false: 0, true: 1}[texts]]
	stop := make(chan struct{})
	var working sync.WaitGroup
	for i, kind := range driverKinds {
		c := &native{run: r, engine: e, name: name, kind: kind, id: first + int64(i)*1e8, dial: func(ctx context.Context) (session, error) {
			if e.name == "mariadb" {
				return dialMariaDBAs(ctx, user, address, texts)
			}
			return e.dial(ctx, address, texts)
		}}
		working.Go(func() { c.work(stop) })
	}
	return func() {
		close(stop)
		working.Wait()
	}
}

// A native is a client in Go that does the same as those in other languages.
type native struct {
	run        *driverRun
	engine     *engine
	name, kind string
	id         int64
	dial       func(context.Context) (session, error)
	session    session
	settings   string
}

var nativeSettings = map[string][]string{
	"postgres": {
		"SET statement_timeout = '54321ms'", "SET TIME ZONE '+03:00'",
		"SELECT current_setting('statement_timeout') || ' ' || current_setting('TimeZone')",
	},
	"mariadb": {
		"SET SESSION group_concat_max_len = 54321", "SET time_zone = '+03:00'",
		"SELECT CONCAT(@@group_concat_max_len, ' ', @@time_zone)",
	},
}

func (c *native) say(did string, id int64, err error) {
	s := saying{Driver: c.name, Kind: c.kind, Did: did, ID: id}
	if err != nil {
		s.Code, s.Text = errorCode(err), err.Error()
	}
	c.run.hear(s)
}

func (c *native) work(stop <-chan struct{}) {
	defer c.hangUp()
	for {
		select {
		case <-stop:
			return
		case <-time.After(5 * time.Millisecond):
		}
		ctx, cancel := context.WithTimeout(context.Background(), labtest.Patience)
		c.step(ctx)
		cancel()
		if c.session != nil && !c.session.alive() {
			c.hangUp()
		}
	}
}

func (c *native) hangUp() {
	if c.session != nil {
		c.session.close()
		c.session = nil
	}
}

func (c *native) one(ctx context.Context, text string, args ...any) (value string, err error) {
	err = c.session.rows(ctx, func(scan func(...any) error) error { return scan(&value) }, text, args...)
	return value, err
}

func (c *native) connect(ctx context.Context) (err error) {
	if c.session, err = c.dial(ctx); err != nil {
		c.session = nil
		return err
	}
	texts := nativeSettings[c.engine.name]
	for _, text := range texts[:2] {
		if _, err := c.session.exec(ctx, text); err != nil {
			return err
		}
	}
	c.settings, err = c.one(ctx, texts[2])
	return err
}

func (c *native) step(ctx context.Context) {
	if c.session == nil {
		if err := c.connect(ctx); err != nil {
			c.say("connect", 0, err)
			c.hangUp()
			time.Sleep(50 * time.Millisecond) // as applications do
			return
		}
	}
	c.id++
	id, insert := c.id, "INSERT INTO written (id, part) VALUES (?, ?)"
	exec := func(text string, args ...any) error { _, err := c.session.exec(ctx, text, args...); return err }
	there := "1"
	switch c.kind {
	case transactions:
		there = "2"
		err := exec("BEGIN")
		for part := int64(1); part <= 2 && err == nil; part++ {
			err = exec(insert, id, part)
		}
		if err == nil {
			if err = exec("COMMIT"); err != nil {
				c.say("write", id, err)
			}
		} else {
			c.say("not committed", id, err)
		}
		if err != nil {
			if c.session.alive() && exec("ROLLBACK") != nil {
				c.hangUp()
			}
			return
		}
	case hintedWrites:
		insert = "/* batch */ " + insert
		fallthrough
	default:
		if err := exec(insert, id, int64(1)); err != nil {
			c.say("write", id, err)
			return
		}
	}
	c.say("ok", id, nil)
	found, err := c.one(ctx, "SELECT CAST(COUNT(*) AS CHAR(20)) FROM written WHERE id = ?", id)
	if err == nil {
		if found = strings.TrimSpace(found); found != there {
			c.run.hear(saying{c.name, c.kind, "complaint", 0, "", fmt.Sprintf("write %d is there %s times", id, found)})
		}
		var now string
		if now, err = c.one(ctx, nativeSettings[c.engine.name][2]); err == nil && now != c.settings {
			c.run.hear(saying{c.name, c.kind, "complaint", 0, "", fmt.Sprintf("settings %s, not %s", now, c.settings)})
		}
	}
	if err != nil {
		c.say("read", 0, err)
	}
}

// judge compares the outcomes that clients saw with the primary's tables, by driver.
func (r *driverRun) judge(s *storm) map[string]*verdict {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), labtest.Patience)
	defer cancel()
	d := s.direct(ctx)
	defer d.close()
	r.mu.Lock()
	defer r.mu.Unlock()
	verdicts := map[string]*verdict{}
	of := func(id int64) *verdict {
		name := r.owners[id]
		if verdicts[name] == nil {
			verdicts[name] = &verdict{}
		}
		return verdicts[name]
	}
	there := map[int64]byte{}
	s.must(d.rows(ctx, func(scan func(...any) error) error {
		var id, part int64
		if err := scan(&id, &part); err != nil {
			return err
		}
		v := of(id)
		if _, known := r.writes[id]; !known {
			v.say(&v.wrong, "write %d was never reported", id)
		}
		if there[id]&byte(part) != 0 {
			v.say(&v.doubled, "write %d part %d is there more than once", id, part)
		}
		there[id] |= byte(part)
		return nil
	}, "SELECT id, part FROM written"))
	for id, w := range r.writes {
		v := of(id)
		if there[id] != 0 && there[id] != w.parts {
			v.say(&v.halves, "write %d has parts %b of %b", id, there[id], w.parts)
		}
		switch w.outcome {
		case acked:
			v.acked++
			if there[id] == 0 {
				v.say(&v.lost, "write %d was acknowledged and is lost", id)
			}
		case refused:
			v.refused++
			if there[id] != 0 {
				v.say(&v.ghosts, "write %d was refused and is there", id)
			}
		default:
			v.unknown++
			if there[id] != 0 {
				v.happened++
			}
		}
	}
	for name, v := range verdicts {
		r.t.Logf("%s: %s", name, v)
		if v.breaches() > 0 {
			r.t.Errorf("%s: %s\n%s", name, v, strings.Join(v.examples, "\n"))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.samples)) {
		r.t.Logf("%s, for example %s", name, r.samples[name])
	}
	if n := len(r.complaints); n > 0 {
		r.t.Errorf("%d complaints:\n%s", n, strings.Join(r.complaints[:min(n, 20)], "\n"))
	}
	return verdicts
}

// table returns the table of results.
func (r *driverRun) table(events []string, rounds int, met map[string]map[[2]string]*affair, verdicts map[string]*verdict) string {
	var b strings.Builder
	drivers := slices.Sorted(maps.Keys(verdicts))
	for _, event := range events {
		fmt.Fprintf(&b, "### %s, by a %s: rounds: %d\n\n| driver | longest gap: plain | hinted | transactions | errors: plain | hinted | transactions | attempts to connect that failed |\n|---|---:|---:|---:|---|---|---|---:|\n", r.engine, event, rounds)
		for _, d := range drivers {
			fmt.Fprintf(&b, "| %s |", d)
			failed := 0
			for _, kind := range driverKinds {
				a := met[event][[2]string{d, kind}]
				fmt.Fprintf(&b, " %.2f s |", slices.Max(a.gaps).Seconds())
				failed += a.refused
			}
			for _, kind := range driverKinds {
				errs := counts(met[event][[2]string{d, kind}].errs)
				if errs == "" {
					errs = "none"
				}
				b.WriteString(" " + errs + " |")
			}
			fmt.Fprintf(&b, " %d |\n", failed)
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "### %s, all writes\n\n| driver | acknowledged | of them lost | twice | in halves | refused, and there | outcome unknown (and there) |\n|---|---:|---:|---:|---:|---:|---:|\n", r.engine)
	for _, d := range drivers {
		v := verdicts[d]
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d | %d (%d) |\n", d, v.acked, v.lost, v.doubled, v.halves, v.ghosts, v.unknown, v.happened)
	}
	b.WriteString("\n")
	return b.String()
}
