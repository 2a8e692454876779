package postgres_test

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/backup"
	"github.com/weirdb/weir/internal/backup/archive"
	"github.com/weirdb/weir/internal/backup/bulk"
	dump "github.com/weirdb/weir/internal/backup/postgres"
	"github.com/weirdb/weir/internal/backup/restore"
	load "github.com/weirdb/weir/internal/backup/restore/postgres"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

const shop = `
CREATE SCHEMA shop; CREATE SCHEMA other;
CREATE TABLE shop.customers (id serial PRIMARY KEY, name text NOT NULL);
CREATE TABLE shop.orders (id serial PRIMARY KEY, customer int REFERENCES shop.customers, what text);
CREATE INDEX what ON shop.orders (what);
CREATE TABLE other.notes (id int, note text);
CREATE VIEW shop.who AS SELECT name FROM shop.customers;
INSERT INTO shop.customers (name) SELECT 'c' || g FROM generate_series(1, 100) g;
INSERT INTO shop.orders (customer, what) SELECT g % 100 + 1, 'w' || g FROM generate_series(1, 1000) g;
INSERT INTO other.notes SELECT g, 'n' FROM generate_series(1, 10) g;
COMMENT ON TABLE shop.orders IS 'orders';
`

// relations lists what a database holds.
func (r *rig) relations(db string) string {
	return r.psql(db, `SELECT string_agg(n.nspname || '.' || c.relname, ' ' ORDER BY n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE relkind IN ('r', 'v', 'i', 'S', 'm') AND n.nspname IN ('shop', 'other', 'public')`)
}

func TestSelectedTablesAreBackedUp(t *testing.T) {
	r := newRig(t, server(t), shop)
	for _, c := range []struct {
		filter bulk.Filter
		data   string
	}{
		{bulk.Filter{Schemas: []string{"sh*"}}, "shop.customers shop.orders"},
		{bulk.Filter{ExcludeSchemas: []string{"shop"}}, "other.notes"},
		{bulk.Filter{Tables: []string{"*.or?ers", "other.n*"}}, "other.notes shop.orders"},
		{bulk.Filter{Tables: []string{"shop.*"}, ExcludeTables: []string{"shop.orders"}}, "shop.customers"},
		{bulk.Filter{ExcludeTableData: []string{"shop.orders"}}, "other.notes shop.customers"},
	} {
		res, err := r.backup(backup.Options{Filter: c.filter}, archive.Options{})
		if err != nil {
			t.Errorf("%+v: %v", c.filter, err)
			continue
		}
		var names []string
		for _, table := range res.Tables {
			names = append(names, table.Schema+"."+table.Table)
		}
		if got := strings.Join(names, " "); got != c.data {
			t.Errorf("%+v: rows of %q, want %q", c.filter, got, c.data)
		}
	}
	if _, err := r.backup(backup.Options{Filter: bulk.Filter{Tables: []string{"nothing_like_it"}}}, archive.Options{}); err == nil {
		t.Error("a backup of no table succeeds")
	}
}

func TestSelectedTablesAreRestored(t *testing.T) {
	r := newRig(t, server(t), shop)
	r.backedUp()
	for _, c := range []struct {
		name   string
		filter bulk.Filter
		want   string
	}{
		{"schema", bulk.Filter{Schemas: []string{"other"}}, "other.notes"},
		{"table", bulk.Filter{Tables: []string{"shop.customers"}}, "shop.customers shop.customers_id_seq shop.customers_pkey"},
		{"both", bulk.Filter{Tables: []string{"shop.orders", "other.notes"}}, "other.notes shop.orders shop.orders_id_seq shop.orders_pkey shop.what"},
		{"without", bulk.Filter{ExcludeTables: []string{"shop.customers", "shop.who"}}, "other.notes shop.orders shop.orders_id_seq shop.orders_pkey shop.what"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &rig{t: t, p: r.p, db: r.db, repo: r.repo}
			target := r.restored(restore.Options{Filter: c.filter, Verify: restore.VerifyRows})
			if got := r.relations(target); got != c.want {
				t.Errorf("restored %q, want %q", got, c.want)
			}
		})
	}
	target := r.restored(restore.Options{Filter: bulk.Filter{Tables: []string{"shop.orders"}}})
	if got := r.psql(target, "SELECT count(*), nextval('shop.orders_id_seq'), obj_description('shop.orders'::regclass) FROM shop.orders"); got != "1000|1001|orders" {
		t.Errorf("orders: %s", got)
	}
	if _, err := r.restore(restore.Options{DSN: r.p.DSN(target), Filter: bulk.Filter{Tables: []string{"absent"}}}); err == nil {
		t.Error("a restore of no table succeeds")
	}
}

func TestTargetMustBeEmpty(t *testing.T) {
	r := newRig(t, server(t), shop)
	r.backedUp()
	want := r.source()
	target := r.restored(restore.Options{})
	_, err := r.restore(restore.Options{DSN: r.p.DSN(target)})
	if err == nil || !strings.Contains(err.Error(), "not empty") || !strings.Contains(err.Error(), "--clean") {
		t.Errorf("into a full database: %v", err)
	}
	_, err = r.restore(restore.Options{Create: true, Target: target})
	if err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("--create of a database that exists: %v", err)
	}
	r.exec(target, "DELETE FROM shop.orders; DROP TABLE other.notes")
	_, err = r.restore(restore.Options{DSN: r.p.DSN(target), Clean: true})
	var object *restore.ObjectError
	if !errors.As(err, &object) || !strings.Contains(object.Object, "notes") {
		t.Errorf("--clean of what is not there: %v", err)
	}
	if _, err := r.restore(restore.Options{DSN: r.p.DSN(target), Clean: true, IfExists: true}); err != nil {
		t.Fatal(err)
	}
	r.sameAs(want, target)
	if _, err := r.restore(restore.Options{Create: true, Clean: true, Target: target}); err != nil {
		t.Fatal(err)
	}
	r.sameAs(want, target)
}

func TestSchemaThenData(t *testing.T) {
	r := newRig(t, server(t), zoo)
	r.backedUp()
	target := r.db + "_copy"
	r.createDB(target)
	opts := restore.Options{DSN: r.p.DSN(target), SchemaOnly: true}
	if _, err := r.restore(opts); err != nil {
		t.Fatal(err)
	}
	if got := r.psql(target, "SELECT count(*) FROM plain.a"); got != "0" {
		t.Errorf("--schema-only: %s rows", got)
	}
	opts.SchemaOnly, opts.DataOnly = false, true
	if _, err := r.restore(opts); err != nil {
		t.Fatal(err)
	}
	// Table a has a trigger that always fires.
	for _, q := range []string{"SELECT count(*) FROM plain.a", "SELECT count(*), sum(a_id * id) FROM plain.b", "SELECT last_value FROM plain.used"} {
		if got, want := r.psql(target, q), r.psql(r.db, q); got != want {
			t.Errorf("--data-only: %s: %s, want %s", q, got, want)
		}
	}
	if _, err := r.restore(opts); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("--data-only a second time: %v", err)
	}
}

func TestDryRunChangesNothing(t *testing.T) {
	r := newRig(t, server(t), shop)
	r.backedUp()
	target := r.db + "_copy"
	r.createDB(target)
	before := r.native(target)
	res, err := r.restore(restore.Options{DSN: r.p.DSN(target), DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	var plan []string
	for _, s := range res.Plan {
		plan = append(plan, s.Phase+": "+s.Object)
	}
	text := strings.Join(plan, "\n")
	for _, want := range []string{"definitions: TABLE shop.orders", "data: shop.orders", "indexes and constraints: INDEX shop.what", "indexes and constraints: FK CONSTRAINT"} {
		if !strings.Contains(text, want) {
			t.Errorf("the plan lacks %q:\n%s", want, text)
		}
	}
	if r.native(target) != before {
		t.Error("a dry run changed the target")
	}
}

func TestWithoutOwnersAndGrants(t *testing.T) {
	r := newRig(t, server(t), zoo)
	r.backedUp()
	target := r.restored(restore.Options{NoOwner: true, NoPrivileges: true})
	text := r.native(target)
	if strings.Contains(text, "OWNER TO \"zoo keeper\"") {
		t.Error("--no-owner leaves owners")
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "GRANT ") || strings.HasPrefix(line, "REVOKE ") {
			t.Errorf("--no-privileges leaves %s", line)
		}
	}
}

func TestErrorsNameTheObject(t *testing.T) {
	r := newRig(t, server(t), shop)
	r.mustBackup(backup.Options{})
	target := r.db + "_copy"
	r.createDB(target)
	r.exec(target, "CREATE SCHEMA shop; CREATE TABLE shop.customers (wrong int)")
	opts := restore.Options{DSN: r.p.DSN(target), Filter: bulk.Filter{Schemas: []string{"shop"}}, Stop: true}
	_, err := r.restore(opts)
	var object *restore.ObjectError
	if !errors.As(err, &object) || object.Object != "TABLE shop.customers" || !strings.Contains(object.Statement, "CREATE TABLE shop.customers") {
		t.Fatalf("error: %v", err)
	}
	opts.Stop, opts.Resume = false, true
	res, err := r.restore(opts)
	if err == nil || len(res.Failed) < 2 {
		t.Errorf("going on: %v, %d failed", err, len(res.Failed))
	}
	if got := r.psql(target, "SELECT count(*) FROM shop.orders"); got != "1000" {
		t.Errorf("what could be restored was not: %s orders", got)
	}
	var rest strings.Builder
	if err := res.WriteRest(&rest, "/backups", "ID"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CREATE TABLE shop.customers", "weir backup cat /backups ID db/" + r.db + "/data/shop.customers/0001.copy", "left out, for it needs TABLE shop.customers"} {
		if !strings.Contains(rest.String(), want) {
			t.Errorf("what is left to do does not say %q:\n%s", want, rest.String())
		}
	}
}

func TestVerifyFindsADifference(t *testing.T) {
	r := newRig(t, server(t), shop)
	r.backedUp()
	target := r.db + "_copy"
	r.createDB(target)
	if _, err := r.restore(restore.Options{DSN: r.p.DSN(target), SchemaOnly: true}); err != nil {
		t.Fatal(err)
	}
	r.exec(target, `CREATE FUNCTION public.spoil() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.note := NEW.note || (CASE NEW.id WHEN 5 THEN ''!'' ELSE '''' END); RETURN NEW; END';
CREATE TRIGGER spoil BEFORE INSERT ON other.notes FOR EACH ROW EXECUTE FUNCTION public.spoil(); ALTER TABLE other.notes ENABLE ALWAYS TRIGGER spoil`)
	_, err := r.restore(restore.Options{DSN: r.p.DSN(target), DataOnly: true, Verify: restore.VerifyRows})
	if !errors.Is(err, load.ErrDiffers) || !strings.Contains(err.Error(), "other.notes") {
		t.Errorf("error: %v", err)
	}
}

func TestDamagedChunkLoadsNothing(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, server(t), shop)
	r.repo = openRepo(t, dir)
	res, err := r.backup(backup.Options{}, archive.Options{ID: "x", Compression: archive.Compression{Codec: archive.None}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range res.Manifest.Chunks {
		if c.Table == "orders" {
			path := dir + "/x/" + c.File
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			b[len(b)-2] ^= 1 // the last row is still a row
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	target := r.db + "_copy"
	r.createDB(target)
	_, err = r.restore(restore.Options{DSN: r.p.DSN(target)})
	if !errors.Is(err, archive.ErrCorrupt) || !strings.Contains(err.Error(), "shop.orders") {
		t.Errorf("error: %v", err)
	}
	if got := r.psql(target, "SELECT count(*) FROM shop.orders"); got != "0" {
		t.Errorf("%s rows of a damaged chunk were committed", got)
	}
}

// TestManyTables backs up more tables than are locked at once, or as many as WEIR_TEST_TABLES
// says, which make torture sets. Most of them are small.
func TestManyTables(t *testing.T) {
	testkit.Long(t, "backs up hundreds of tables")
	n := 510
	if s := os.Getenv("WEIR_TEST_TABLES"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	p := server(t)
	if n > 5000 { // one transaction locks all of them, and pg_dump's locks them, too
		p = labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast, Settings: map[string]string{"max_locks_per_transaction": strconv.Itoa(n / 50)}})
	}
	r := newRig(t, p, "")
	var b strings.Builder
	for i := range n {
		if i%500 == 0 {
			b.WriteString("COMMIT; BEGIN;\n")
		}
		columns := "id int, x int"
		if i%10 == 0 {
			columns = "id int PRIMARY KEY, x text"
		}
		fmt.Fprintf(&b, "CREATE TABLE t%d (%s); INSERT INTO t%d VALUES (%d, '7');\n", i, columns, i, i)
	}
	r.psql(r.db, "BEGIN;\n"+b.String()+"COMMIT;")
	res := r.mustBackup(backup.Options{})
	if len(res.Tables) != n {
		t.Fatalf("%d tables, want %d", len(res.Tables), n)
	}
	target := r.restored(restore.Options{})
	r.same(r.db, target)
}

// TestClusterComesBack backs up a server with roles and databases, and restores it
// into an empty one.
func TestClusterComesBack(t *testing.T) {
	r := newRig(t, ownServer(t), "")
	r.psql("postgres", `CREATE ROLE "the app" LOGIN PASSWORD 'secret'; CREATE ROLE readers; GRANT readers TO "the app" WITH ADMIN OPTION; ALTER ROLE readers SET work_mem = '7MB';
CREATE DATABASE "Shop; 'x'" OWNER "the app" CONNECTION LIMIT 7; ALTER DATABASE "Shop; 'x'" SET search_path = shop, "a b"; COMMENT ON DATABASE "Shop; 'x'" IS 'c;d'; GRANT CONNECT ON DATABASE "Shop; 'x'" TO readers; REVOKE ALL ON DATABASE "Shop; 'x'" FROM PUBLIC`)
	r.psql("Shop; 'x'", shop)
	r.psql(r.db, "CREATE TABLE t AS SELECT 1 AS one")
	r.mustBackup(backup.Options{DSN: r.p.DSN("postgres"), Cluster: true})
	if text := r.text("globals.sql"); !strings.Contains(text, "SCRAM-SHA-256") {
		t.Errorf("globals hold no secret of a role:\n%s", text)
	}
	into := &rig{t: t, p: ownServer(t), db: r.db, repo: r.repo}
	res, err := into.restore(restore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(res.Warnings)
	for _, db := range []string{"Shop; 'x'", r.db} {
		if a, b := r.native(db), into.native(db); a != b {
			t.Errorf("database %s differs", db)
		}
	}
	for _, q := range []string{
		"SELECT string_agg(rolname || coalesce(rolpassword, '-'), ',' ORDER BY rolname) FROM pg_authid WHERE rolname !~ '^pg_'",
		"SELECT string_agg(roleid::regrole::text || member::regrole::text || admin_option, ',') FROM pg_auth_members",
		"SELECT datconnlimit, datacl, pg_get_userbyid(datdba), shobj_description(oid, 'pg_database') FROM pg_database WHERE datname ~ '^Shop'",
		"SELECT string_agg(setconfig::text, ',' ORDER BY setconfig::text) FROM pg_db_role_setting",
	} {
		if a, b := r.psql("postgres", q), into.psql("postgres", q); a != b {
			t.Errorf("%s:\nsource %s\ncopy   %s", q, a, b)
		}
	}

	r.mustBackup(backup.Options{DSN: r.p.DSN("postgres"), Cluster: true, NoRolePasswords: true, Databases: []string{r.db}, SchemaOnly: true})
	if text := r.text("globals.sql"); strings.Contains(text, "SCRAM-SHA-256") {
		t.Error("--no-role-passwords leaves secrets")
	}
}

func TestParts(t *testing.T) {
	r := newRig(t, server(t), zoo)
	has := func(res *backup.Result, kind archive.Kind) bool {
		for _, c := range res.Manifest.Chunks {
			if c.Kind == kind {
				return true
			}
		}
		return false
	}
	res := r.mustBackup(backup.Options{SchemaOnly: true})
	if has(res, archive.KindData) || has(res, archive.KindState) || has(res, archive.KindBlobs) || !has(res, archive.KindSchema) {
		t.Error("a backup of definitions holds something else")
	}
	if got := r.psql(r.restored(restore.Options{}), "SELECT count(*) FROM plain.a"); got != "0" {
		t.Errorf("%s rows from a backup of definitions", got)
	}
	res = r.mustBackup(backup.Options{NoUnlogged: true, NoLargeObjects: true, Deferrable: true})
	if has(res, archive.KindBlobs) {
		t.Error("large objects are not left out")
	}
	target := r.restored(restore.Options{})
	if got := r.psql(target, "SELECT (SELECT count(*) FROM plain.unlogged), (SELECT count(*) FROM plain.a)"); got != "0|200" {
		t.Errorf("unlogged and logged rows: %s", got)
	}
}

// TestRowSecurityIsNoFilter backs up as a user to whom a policy shows only some rows.
func TestRowSecurityIsNoFilter(t *testing.T) {
	r := newRig(t, server(t), `
DO $$ BEGIN CREATE ROLE limited LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
CREATE TABLE public.seen (who name, what text); INSERT INTO public.seen VALUES ('limited', 'a'), ('postgres', 'b');
ALTER TABLE public.seen ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON public.seen USING (who = current_user);
CREATE TABLE public.hidden (x int);
GRANT SELECT ON public.seen TO limited`)
	dsn := strings.Replace(r.p.DSN(r.db), "postgres@", "limited@", 1)
	_, err := r.backup(backup.Options{DSN: dsn}, archive.Options{})
	if err == nil || !strings.Contains(err.Error(), "hidden") || !strings.Contains(err.Error(), "--exclude-table") {
		t.Errorf("without the right to read a table: %v", err)
	}
	_, err = r.backup(backup.Options{DSN: dsn, Filter: bulk.Filter{ExcludeTables: []string{"hidden"}}}, archive.Options{})
	if err == nil || !strings.Contains(err.Error(), "row-level security") {
		t.Errorf("with a policy: %v", err)
	}
}

// TestStreamComesBack writes one tar stream and restores from it, plain and encrypted.
func TestStreamComesBack(t *testing.T) {
	r := newRig(t, server(t), zoo)
	path := t.TempDir() + "/backup.tar"
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := archive.CreateStream(t.Context(), f, archive.Options{Encryption: archive.EncryptionOptions{Passphrase: "open sesame", PassphraseWork: 10}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dump.Run(t.Context(), backup.Options{DSN: r.p.DSN(r.db), ChunkBytes: backup.MinChunkBytes}, w); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	reader, err := archive.OpenLocation(t.Context(), path, "", archive.ReadOptions{Passphrase: "open sesame"})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	target := r.db + "_copy"
	r.dropAfter(target)
	if _, err := load.Run(t.Context(), restore.Options{DSN: r.p.DSN("postgres"), Create: true, Clean: true, Target: target}, reader); err != nil {
		t.Fatal(err)
	}
	r.sameAs(r.source(), target)
}

// TestConfigurationOfExtensions backs up the rows of an extension's configuration table
// (pg_extension_config_dump). No extension that every server has marks one, so the test marks
// one itself.
func TestConfigurationOfExtensions(t *testing.T) {
	r := newRig(t, server(t), `
CREATE TABLE public.settings (id int, value text); INSERT INTO public.settings SELECT g, 'v' || g FROM generate_series(1, 10) g;
CREATE SEQUENCE public.counter; SELECT setval('public.counter', 42);
ALTER EXTENSION plpgsql ADD TABLE public.settings; ALTER EXTENSION plpgsql ADD SEQUENCE public.counter;
UPDATE pg_extension SET extconfig = ARRAY['public.settings'::regclass::oid, 'public.counter'::regclass::oid], extcondition = ARRAY['WHERE id > 8', ''] WHERE extname = 'plpgsql'`)
	res, err := r.backup(backup.Options{Checksums: true}, archive.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Tables) != 1 || res.Tables[0].Rows != 2 {
		t.Fatalf("tables: %+v", res.Tables)
	}
	if got := r.text(res.Manifest.Chunks[0].Path); got != "9\tv9\n10\tv10\n" {
		t.Errorf("rows: %q", got)
	}
	if got := r.text("db/" + r.db + "/state/sequences.sql"); !strings.Contains(got, `'"public"."counter"', 42, true`) {
		t.Errorf("sequences: %q", got)
	}
	res = r.mustBackup(backup.Options{Filter: bulk.Filter{Schemas: []string{"public"}}})
	if len(res.Tables) != 0 {
		t.Errorf("a part of the database holds what belongs to an extension: %+v", res.Tables)
	}
}

// TestSecretsStayOutOfSight backs up from a server that requires TLS and a password. pg_dump
// must get the password, and no manifest may contain it.
func TestSecretsStayOutOfSight(t *testing.T) {
	p := labtest.Postgres(t, lab.PostgresConfig{Durability: lab.Fast, Auth: lab.SCRAM, Password: "p@ss w'ord", TLS: lab.TLSRequired})
	r := newRig(t, p, shop)
	dir := t.TempDir()
	r.repo = openRepo(t, dir)
	if _, err := r.backup(backup.Options{}, archive.Options{ID: "x"}); err != nil {
		t.Fatal(err)
	}
	manifest, err := os.ReadFile(dir + "/x/manifest.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"p@ss", "p%40ss", p.Addr()} {
		if strings.Contains(string(manifest), secret) {
			t.Errorf("the manifest holds %s", secret)
		}
	}
	r.sameAs(r.source(), r.restored(restore.Options{}))
	_, err = r.backup(backup.Options{DSN: strings.Replace(p.DSN(r.db), "p%40ss", "wr0ng", 1)}, archive.Options{})
	if err == nil || strings.Contains(err.Error(), "wr0ng") {
		t.Errorf("with a wrong password: %v", err)
	}
}
