# The suites of the MySQL family: a part of scripts/driver-suites. They run with
# MariaDB, or with MySQL if SERVER and PROXY name one.
# shellcheck shell=bash disable=SC2154 # variables of that script

mysql_suites=(go-sql-driver mariadb-client mariadb-dump sysbench)
gosqldriver=github.com/go-sql-driver/mysql@v1.10.1

start_mysql() {
	[ -z "$server_port" ] || return 0
	# As in the driver's own CI, with TLS, which two of its tests need, and with room
	# for the pools of each class of clients.
	start_server mysql --engine mariadb --performance-schema --max-connections 150 --tls=optional \
		--set max_allowed_packet=48M,local_infile=1
	start_proxy mysql --mysql "mysql://root@127.0.0.1:$server_port/" --listen-mysql 127.0.0.1:0 --trust-loopback --local-infile \
		--client-tls-cert "$server_dir/server.crt" --client-tls-key "$server_dir/server.key"
}

# The options of every client: port first. No option file may interfere.
client() {
	local program=$1 port=$2
	shift 2
	"$program" --no-defaults --protocol=tcp -h 127.0.0.1 -P "$port" -u root "$@"
}

# Runs one suite: name, "direct" or "weir", port.
run_mysql() {
	: >"$out/$1.$2"
	"run_$1" "$@"
	LC_ALL=C sort -k1,1 -o "$out/$1.$2" "$out/$1.$2"
}

run_go-sql-driver() {
	local suite=$1 way=$2 port=$3
	client mariadb "$server_port" -e 'DROP DATABASE IF EXISTS gotest; CREATE DATABASE gotest'
	(
		cd "$(sources "$gosqldriver")"
		export MYSQL_TEST_ADDR=127.0.0.1:$port MYSQL_TEST_CONCURRENT=1
		# It waits for an address on the Internet that does not answer, and
		# panics if the connection is refused.
		go_tests "$suite" "$way" -test.skip TestConnectorReturnsTimeout
	)
}

# outcome NAME SUITE WAY STATUS: a program's test passes if the program succeeds
# and its output through weir is the same as direct.
outcome() {
	local name=$1 suite=$2 way=$3 status=$4 result=PASS
	[ "$status" = 0 ] && { [ "$way" = direct ] || cmp -s "$out/$suite/$name.direct" "$out/$suite/$name.$way"; } || result=FAIL
	echo "$name $result" >>"$out/$suite.$way"
}

# The client's session: each section of client.sql, which starts with
# "-- test: NAME", in its own session and database, including errors.
run_mariadb-client() {
	local suite=$1 way=$2 port=$3 section name status
	mkdir -p "$out/$suite"
	awk -v dir="$out/$suite" '/^-- test: / { name = $3 } name { print >(dir "/" name ".sql") }' "$root/scripts/suites/client.sql"
	for section in "$out/$suite"/*.sql; do
		name=$(basename "$section" .sql)
		client mariadb "$server_port" -e 'DROP DATABASE IF EXISTS client; CREATE DATABASE client'
		status=0
		client mariadb "$port" --force --table --show-warnings -vvv --local-infile client \
			<"$section" >"$out/$suite/$name.log" 2>&1 || status=$?
		[ "$status" -le 1 ] && status=0 # 1: a statement failed, as some are meant to
		# Times differ between runs.
		sed -E 's/ \([0-9.]+ (sec|min)[^)]*\)$//' "$out/$suite/$name.log" >"$out/$suite/$name.$way"
		outcome "$name" "$suite" "$way" "$status"
	done
}

# Dumps of one database with different options, and a dump loaded again.
run_mariadb-dump() {
	local suite=$1 way=$2 port=$3 status
	mkdir -p "$out/$suite"
	if [ "$way" = direct ]; then
		client mariadb "$server_port" -e 'DROP DATABASE IF EXISTS dumped; CREATE DATABASE dumped'
		client mariadb "$server_port" dumped <"$root/scripts/suites/dump.sql"
	fi
	while read -r name options; do
		status=0
		# shellcheck disable=SC2086 # several options
		client mariadb-dump "$port" --skip-dump-date $options >"$out/$suite/$name.$way" 2>"$out/$suite/$name.$way.log" || status=$?
		outcome "$name" "$suite" "$way" "$status"
	done <<-'OPTIONS'
		default dumped
		everything --routines --triggers --events --databases dumped
		transaction --single-transaction --quick dumped
		locked --lock-all-tables dumped
		binary --hex-blob --skip-extended-insert --complete-insert dumped
		unbuffered --skip-quick --order-by-primary dumped
		schema --no-data --compatible=ansi dumped
		part --where=id%2=0 dumped wide
		xml --xml --no-create-info dumped
	OPTIONS
	status=0
	client mariadb "$server_port" -e 'DROP DATABASE IF EXISTS restored; CREATE DATABASE restored'
	{
		client mariadb "$port" restored <"$out/$suite/transaction.direct" &&
			client mariadb-dump "$server_port" --skip-dump-date --single-transaction --quick restored |
			sed 's/Database: restored/Database: dumped/' >"$out/$suite/restored.$way"
	} 2>"$out/$suite/restored.$way.log" || status=$?
	outcome restored "$suite" "$way" "$status"
}

# sysbench on small tables. Each of its transactions deletes a row and inserts it
# again. With one client the counts are the same each time; with several, some
# transactions are repeated after a deadlock.
run_sysbench() {
	local suite=$1 way=$2 port=$3 mode name log status
	mkdir -p "$out/$suite"
	for mode in auto disable; do # server-side prepared statements, and text
		for threads in 1 8; do
			name=$mode-$threads status=0
			log=$out/$suite/$name.$way.log
			client mariadb "$server_port" -e 'DROP DATABASE IF EXISTS sbtest; CREATE DATABASE sbtest'
			sysbench_on "$port" "$mode" 1 prepare >"$log" 2>&1 &&
				sysbench_on "$port" "$mode" "$threads" run >>"$log" 2>&1 || status=$?
			{
				[ "$threads" != 1 ] || sed -nE 's/^ +(read|write|other|total|ignored errors|reconnects|transactions): +([0-9]+).*/\1 \2/p' "$log"
				client mariadb "$server_port" sbtest -N -e 'SELECT count(*), sum(id) FROM sbtest1 UNION ALL SELECT count(*), sum(id) FROM sbtest2'
			} >"$out/$suite/$name.$way" 2>>"$log" || status=$?
			outcome "$name" "$suite" "$way" "$status"
		done
	done
}

sysbench_on() {
	local port=$1 mode=$2 threads=$3 step=$4
	timeout 120 sysbench oltp_read_write --db-driver=mysql --mysql-host=127.0.0.1 --mysql-port="$port" --mysql-user=root \
		--mysql-db=sbtest --tables=2 --table-size=1000 --events=400 --time=0 --rand-seed=7 \
		--db-ps-mode="$mode" --threads="$threads" "$step"
}
