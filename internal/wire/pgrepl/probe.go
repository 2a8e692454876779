package pgrepl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// ProbeConfig says what a Tail will need.
type ProbeConfig struct {
	Table Table
	// Publication is the name of the publication to use, or to create if it does not exist.
	Publication string
	// Slot is the slot to use if it exists. Default: "", a new one is needed.
	Slot string
}

// Finding is a reason why logical replication is impossible or unwise.
type Finding struct {
	// About is a short, stable name, such as "wal_level".
	About  string
	Reason string
	Hint   string // what to do about it; may be empty
}

// String returns one line for an operator.
func (f Finding) String() string {
	if f.Hint == "" {
		return f.Reason
	}
	return f.Reason + " (" + f.Hint + ")"
}

// Report is the result of Probe.
type Report struct {
	Version int // as server_version_num
	// Obstacles are the reasons why tailing is impossible. If there are none, it is possible.
	Obstacles []Finding
	// Warnings do not prevent it.
	Warnings []Finding
	// PublicationExists and SlotExists say what is there already.
	PublicationExists, SlotExists bool
}

// Possible reports whether there are no obstacles.
func (r *Report) Possible() bool { return len(r.Obstacles) == 0 }

// Reason returns all obstacles on one line, or "".
func (r *Report) Reason() string {
	var all []string
	for _, f := range r.Obstacles {
		all = append(all, f.String())
	}
	return strings.Join(all, "; ")
}

// ServersOwn is a statement that limits the search path of a session to the server's own
// schema. Otherwise users who may create objects in a schema of the path could make the
// session's queries call these.
const ServersOwn = "SET search_path = pg_catalog, pg_temp"

// Probe reports whether a table can be tailed with this login, and why not. It changes nothing:
// it reads settings and the catalog. It returns an error if the server cannot be queried at all.
func Probe(ctx context.Context, cfg pgwire.ConnectConfig, want ProbeConfig) (*Report, error) {
	c, report, err := ConnectProbed(ctx, cfg, want)
	if c != nil {
		_ = c.Close() // it has served its purpose
	}
	return report, err
}

// ConnectProbed connects in mode Logical and probes through that connection, whose search
// path it sets to [ServersOwn]. Only such a connection shows what pg_hba.conf and a provider's
// own rules allow. If it fails, the connection is nil, and the report of an ordinary session
// says why.
func ConnectProbed(ctx context.Context, cfg pgwire.ConnectConfig, want ProbeConfig) (*Conn, *Report, error) {
	c, err := Connect(ctx, cfg, Logical)
	refusal := err
	// Some middleboxes close the connection without an error. A host that does not answer
	// at all is not tried again.
	if pgwire.CodeOf(err) != "" || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		c, err = Connect(ctx, cfg, SQL)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("probe logical replication: %w", err)
	}
	p := &prober{conn: c, want: want, report: &Report{Version: c.version}}
	err = p.run(ctx)
	if err != nil || refusal != nil {
		_ = c.Close() // it has served its purpose
		c = nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("probe logical replication: %w", err)
	}
	if refusal != nil {
		p.refused(refusal)
	}
	return c, p.report, nil
}

type prober struct {
	conn   *Conn
	want   ProbeConfig
	report *Report
	// facts are the values of the first query, by column.
	facts map[string]string
}

func (p *prober) obstacle(about, hint, format string, args ...any) {
	p.report.Obstacles = append(p.report.Obstacles, Finding{about, fmt.Sprintf(format, args...), hint})
}

func (p *prober) warn(about, hint, format string, args ...any) {
	p.report.Warnings = append(p.report.Warnings, Finding{about, fmt.Sprintf(format, args...), hint})
}

func (p *prober) run(ctx context.Context) error {
	if p.conn.version < 120000 {
		p.obstacle("version", "", "the server is of version %d, and logical replication is supported from PostgreSQL 12", p.conn.version/10000)
		return nil
	}
	// By a statement: poolers reject it as a parameter of the login.
	if _, err := p.conn.Query(ctx, ServersOwn); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{p.ask, p.slot, p.publication} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	p.settings()
	return nil
}

// row runs a query of one row and returns its values by column, without NULLs; nil if there is
// no row.
func (p *prober) row(ctx context.Context, sql string) (map[string]string, error) {
	results, err := p.conn.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	if len(results) != 1 || len(results[0].Rows) == 0 {
		return nil, nil
	}
	m := map[string]string{}
	for i, f := range results[0].Fields {
		if v := results[0].Rows[0][i]; v != nil {
			m[f.Name] = string(v)
		}
	}
	return m, nil
}

func (p *prober) ask(ctx context.Context) error {
	facts, err := p.row(ctx, `SELECT current_setting('wal_level') AS wal_level,
		current_setting('max_replication_slots') AS max_slots,
		(SELECT count(*) FROM pg_catalog.pg_replication_slots) AS slots,
		current_setting('max_wal_senders') AS max_senders,
		(SELECT count(*) FROM pg_catalog.pg_stat_get_wal_senders() WHERE pid <> pg_catalog.pg_backend_pid()) AS senders,
		current_setting('max_slot_wal_keep_size', true) AS keep,
		current_setting('idle_replication_slot_timeout', true) AS idle,
		pg_catalog.pg_is_in_recovery() AS standby,
		current_user AS role, current_database() AS db,
		r.rolreplication OR r.rolsuper AS replicates, r.rolsuper AS super,
		pg_catalog.has_database_privilege(current_database(), 'CREATE') AS creates,
		EXISTS (SELECT 1 FROM pg_catalog.pg_roles m WHERE m.rolname IN ('rds_replication', 'rds_superuser')
			AND pg_catalog.pg_has_role(m.oid, 'MEMBER')) AS rds,
		EXISTS (SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = 'rds_replication') AS on_rds
		FROM pg_catalog.pg_roles r WHERE r.rolname = current_user`)
	if err != nil {
		return fmt.Errorf("ask for settings: %w", err)
	}
	if facts == nil {
		return errors.New("ask for settings: the role does not see itself")
	}
	p.facts = facts
	return nil
}

func (p *prober) is(fact string) bool { return p.facts[fact] == "t" }

// settings evaluates the server's settings.
func (p *prober) settings() {
	if level := p.facts["wal_level"]; level != "logical" {
		p.obstacle("wal_level", "set wal_level = logical and restart the server; on Amazon RDS, rds.logical_replication = 1",
			"wal_level is %s and not logical", level)
	}
	if p.is("standby") && p.conn.version < 160000 {
		p.obstacle("standby", "connect to the primary", "the server is a standby, which decodes from PostgreSQL 16 on only")
	}
	if !p.report.SlotExists && full(p.facts["slots"], p.facts["max_slots"]) {
		p.obstacle("max_replication_slots", "drop a slot that is not used, or raise max_replication_slots and restart the server",
			"all %s replication slots are taken", p.facts["max_slots"])
	}
	if full(p.facts["senders"], p.facts["max_senders"]) {
		p.obstacle("max_wal_senders", "raise max_wal_senders and restart the server",
			"all %s WAL senders are busy", p.facts["max_senders"])
	}
	switch keep := p.facts["keep"]; keep {
	case "":
	case "-1":
		p.warn("max_slot_wal_keep_size", "set max_slot_wal_keep_size to what the disk can spare",
			"max_slot_wal_keep_size is unlimited: while the slot is not read, the log fills the disk")
	default:
		p.warn("max_slot_wal_keep_size", "", "max_slot_wal_keep_size is %s: a slot that lags more than that is lost", keep)
	}
	if idle := p.facts["idle"]; idle != "" && idle != "0" {
		p.warn("idle_replication_slot_timeout", "", "idle_replication_slot_timeout is %s: a slot that is not read for so long is lost", idle)
	}
}

// full reports whether a count has reached its limit.
func full(count, limit string) bool {
	n, err1 := strconv.Atoi(count)
	m, err2 := strconv.Atoi(limit)
	return err1 == nil && err2 == nil && n >= m
}

// slot evaluates an existing slot.
func (p *prober) slot(ctx context.Context) error {
	if p.want.Slot == "" {
		return nil
	}
	if err := checkSlotName(p.want.Slot); err != nil {
		p.obstacle("slot", "", "%v", err)
		return nil
	}
	status := "NULL"
	if p.conn.version >= 130000 {
		status = "wal_status"
	}
	s, err := p.row(ctx, fmt.Sprintf(`SELECT slot_type, plugin, database, active, %s AS status
		FROM pg_catalog.pg_replication_slots WHERE slot_name = %s`, status, literal(p.want.Slot)))
	if err != nil {
		return fmt.Errorf("look up replication slot %s: %w", p.want.Slot, err)
	}
	if s == nil {
		return nil
	}
	p.report.SlotExists = true
	switch {
	case s["slot_type"] != string(LogicalSlot) || s["plugin"] != "pgoutput":
		p.obstacle("slot", "choose another name", "slot %s exists and is not one of pgoutput", p.want.Slot)
	case s["database"] != p.facts["db"]:
		p.obstacle("slot", "choose another name", "slot %s exists and belongs to database %s", p.want.Slot, s["database"])
	case s["status"] == "lost":
		p.obstacle("slot", "drop the slot and start over", "slot %s is lost: the log that it needs is gone", p.want.Slot)
	case s["active"] == "t":
		p.warn("slot", "", "slot %s is in use by another connection", p.want.Slot)
	}
	return nil
}

// publication evaluates the table, the publication and the privileges to create it.
func (p *prober) publication(ctx context.Context) error {
	t := p.want.Table
	table, err := p.row(ctx, fmt.Sprintf(`SELECT c.relkind AS kind, c.relpersistence AS persistence,
		pg_catalog.pg_has_role(c.relowner, 'USAGE') AS owns, pg_catalog.pg_get_userbyid(c.relowner) AS owner
		FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = %s AND c.relname = %s`, literal(t.Namespace), literal(t.Name)))
	if err != nil {
		return fmt.Errorf("look up table %s: %w", t, err)
	}
	switch {
	case table == nil:
		p.obstacle("table", "create it first", "there is no table %s", t)
		return nil
	case table["kind"] != "r" && table["kind"] != "p":
		p.obstacle("table", "", "%s is not a table", t)
		return nil
	case table["persistence"] != "p":
		p.obstacle("table", "ALTER TABLE ... SET LOGGED", "table %s is temporary or unlogged, so its changes are not in the log", t)
		return nil
	}
	pub, err := p.conn.publication(ctx, p.want.Publication, t)
	if err != nil {
		return err
	}
	p.report.PublicationExists = pub.exists
	if pub.bereft() {
		if !pub.owned || table["owns"] != "t" {
			p.obstacle("publication", fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE ONLY %s", ident(p.want.Publication), t),
				"publication %s has lost its table, and role %s does not own both", ident(p.want.Publication), p.facts["role"])
		}
		return nil
	}
	if pub.exists {
		if reason := pub.lacks(); reason != "" {
			p.obstacle("publication", "alter it, or choose another name", "publication %s exists and %s", ident(p.want.Publication), reason)
		}
		return nil
	}
	switch {
	case p.is("standby"):
		p.obstacle("publication", "create it on the primary", "there is no publication %s, and a standby can have none of its own", ident(p.want.Publication))
	case !p.is("creates"):
		p.obstacle("publication", fmt.Sprintf("GRANT CREATE ON DATABASE %s TO %s", ident(p.facts["db"]), ident(p.facts["role"])),
			"there is no publication %s, and role %s may not create in database %s", ident(p.want.Publication), p.facts["role"], p.facts["db"])
	case table["owns"] != "t":
		p.obstacle("publication", fmt.Sprintf("let %s create the publication", table["owner"]),
			"there is no publication %s, and role %s does not own table %s", ident(p.want.Publication), p.facts["role"], t)
	}
	return nil
}

// refused records that the server rejects a replication connection with err.
func (p *prober) refused(err error) {
	if p.conn.version < 120000 {
		return
	}
	role := ident(p.facts["role"])
	var hint string
	switch {
	case p.is("on_rds") && !p.is("rds"):
		hint = "GRANT rds_replication TO " + role
	case p.facts != nil && !p.is("replicates") && !p.is("rds"):
		hint = "ALTER ROLE " + role + " REPLICATION"
	}
	p.obstacle("connection", hint, "the server refuses a replication connection: %v", err)
}
