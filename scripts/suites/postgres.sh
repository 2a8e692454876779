# The PostgreSQL drivers' suites: a part of scripts/driver-suites.
# shellcheck shell=bash disable=SC2154 # variables of that script

postgres_suites=(pgx pgconn pgxpool stdlib pgtype pq)
pgx=github.com/jackc/pgx/v5@v5.12.0
pq=github.com/lib/pq@v1.12.3
declare -A module=([pgx]=$pgx [pgconn]=$pgx [pgxpool]=$pgx [stdlib]=$pgx [pgtype]=$pgx [pq]=$pq)
declare -A folder=([pgx]=. [pgconn]=pgconn [pgxpool]=pgxpool [stdlib]=stdlib [pgtype]=pgtype [pq]=.)

psql=$(find /usr/lib/postgresql -maxdepth 3 -name psql 2>/dev/null | sort -V | tail -1)
pg_admin() { "${psql:-psql}" -X -q -v ON_ERROR_STOP=1 -h 127.0.0.1 -p "$server_port" -U postgres "$@"; }

start_postgres() {
	if [ -z "$server_port" ]; then
		start_server postgres
		start_proxy postgres --postgres "postgres://postgres@127.0.0.1:$server_port/postgres?sslmode=disable" \
			--listen-postgres 127.0.0.1:0 --trust-loopback
	fi
	# What the drivers' own set-up scripts create: roles here, types in each run.
	pg_admin -d postgres <<-'SQL'
		create role pgx_md5 superuser login password 'secret';
		create role " tricky, ' } "" \\ test user " superuser login password 'secret';
		create role pqgo superuser login;
	SQL
}

# Runs one suite: name, "direct" or "weir", port. Each run has a new database.
run_postgres() {
	local suite=$1 way=$2 port=$3 db=suite dir
	dir=$(sources "${module[$suite]}")/${folder[$suite]}
	[ "$suite" != pq ] || db=pqgo # the name is fixed in its tests
	pg_admin -d postgres -c "drop database if exists $db with (force)" -c "create database $db" 2>/dev/null
	pg_admin -d "$db" -c 'create extension hstore; create extension ltree; create domain uint64 as numeric(20,0)'
	(
		cd "$dir"
		export PGHOST=127.0.0.1 PGPORT=$port PGUSER=postgres PGDATABASE=$db PGSSLMODE=disable
		export PGX_TEST_DATABASE="host=127.0.0.1 port=$port user=postgres dbname=$db sslmode=disable"
		export PGX_TEST_TCP_CONN_STRING=$PGX_TEST_DATABASE
		export PGX_TEST_PGBOUNCER_CONN_STRING=$PGX_TEST_DATABASE
		[ "$suite" != pq ] || export PGUSER=pqgo
		go_tests "$suite" "$way"
	)
}
