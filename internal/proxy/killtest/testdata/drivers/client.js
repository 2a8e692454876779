// Writes through weir with the drivers of Node.js until standard input ends.
//
// client.js ENGINE HOST PORT USER DATABASE FIRST: ids are FIRST and up. Each line of
// output is a JSON object; see drivers_test.go.
'use strict'
const [engine, host, port, user, database, first] = process.argv.slice(2)
const postgres = engine === 'postgres'
let next = Number(first)
let stop = false

const settings = postgres
  ? ["SET statement_timeout = '54321ms'", "SET TIME ZONE '+03:00'"]
  : ['SET SESSION group_concat_max_len = 54321', "SET time_zone = '+03:00'"]
const ask = postgres
  ? "SELECT current_setting('statement_timeout') || ' ' || current_setting('TimeZone') AS a"
  : "SELECT CONCAT(@@group_concat_max_len, ' ', @@time_zone) AS a"

// A driver connects and returns run(text, args), which resolves to rows.
const drivers = postgres
  ? {
      'node-postgres': async () => {
        const { Client } = require('pg')
        const c = new Client({ host, port, user, database })
        const conn = { alive: true, close: () => c.end().catch(() => {}) }
        c.on('error', () => { conn.alive = false })
        c.on('end', () => { conn.alive = false })
        await c.connect()
        conn.run = async (text, args) => {
          let n = 0
          text = text.replace(/\?/g, () => '$' + ++n)
          // A name has the statement prepared.
          return (await c.query(args ? { name: text, text, values: args } : text)).rows
        }
        return conn
      },
    }
  : {
      mysql2: mysql('query'),
      'mysql2, prepared': mysql('execute'),
    }

function mysql(method) {
  return async () => {
    const c = await require('mysql2/promise').createConnection({ host, port: Number(port), user, database, connectTimeout: 600000 })
    const conn = { alive: true, close: async () => c.destroy() }
    c.connection.on('error', () => { conn.alive = false })
    conn.run = async (text, args) => {
      try {
        return (await (args ? c[method](text, args) : c.query(text)))[0]
      } catch (e) {
        if (!e.errno || e.fatal) conn.alive = false
        throw e
      }
    }
    return conn
  }
}

const say = what => process.stdout.write(JSON.stringify(what) + '\n')
const pause = ms => new Promise(done => setTimeout(done, ms))

// The server's code, or "lost" where the driver has none.
function code(e) {
  const c = postgres ? (e.severity ? e.code : '') : e.sqlState ? e.errno : 0
  return c ? String(c) : 'lost'
}

async function work(driver, kind) {
  let conn = null
  let want
  while (!stop) {
    await pause(5)
    if (!conn) {
      try {
        conn = await drivers[driver]()
        for (const text of settings) await conn.run(text)
        want = (await conn.run(ask))[0].a
      } catch (e) {
        say({ driver, kind, did: 'connect', code: code(e), text: String(e) })
        if (conn) await conn.close()
        conn = null
        await pause(50)
        continue
      }
    }
    const id = next++
    let committing = kind !== 'transactions'
    let written = false
    try {
      const insert = 'INSERT INTO written (id, part) VALUES (?, ?)'
      if (kind === 'transactions') {
        await conn.run('BEGIN')
        await conn.run(insert, [id, 1])
        await conn.run(insert, [id, 2])
        committing = true
        await conn.run('COMMIT')
      } else {
        await conn.run((kind === 'hinted' ? '/* batch */ ' : '') + insert, [id, 1])
      }
      written = true
      say({ driver, kind, did: 'ok', id })
      const found = Number((await conn.run('SELECT COUNT(*) AS a FROM written WHERE id = ?', [id]))[0].a)
      const now = (await conn.run(ask))[0].a
      if (found !== (kind === 'transactions' ? 2 : 1)) say({ driver, kind, did: 'complaint', text: `write ${id} is there ${found} times` })
      if (now !== want) say({ driver, kind, did: 'complaint', text: `settings ${now}, not ${want}` })
      continue
    } catch (e) {
      say({ driver, kind, did: written ? 'read' : committing ? 'write' : 'not committed', id: written ? 0 : id, code: code(e), text: String(e) })
    }
    try {
      if (conn.alive && kind === 'transactions') await conn.run('ROLLBACK')
    } catch {
      conn.alive = false // what failed was told
    }
    if (!conn.alive) {
      await conn.close()
      conn = null
    }
  }
  if (conn) await conn.close()
}

const all = []
for (const driver of Object.keys(drivers)) {
  for (const kind of ['plain', 'hinted', 'transactions']) all.push(work(driver, kind))
}
process.stdin.resume()
process.stdin.on('end', () => { stop = true })
Promise.all(all).then(() => process.exit(0))
