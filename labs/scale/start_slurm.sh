#!/bin/bash
# A SLURM of one machine, for tests: munge, slurmctld and slurmd, with all of their files in one folder.
#
#   labs/scale/start_slurm.sh start DIR     # then: export SLURM_CONF=DIR/slurm.conf
#   labs/scale/start_slurm.sh stop DIR      # ends them and removes DIR
#
# Needs Debian's packages slurm-wlm and munge (apt install slurm-wlm munge); neither systemd nor cgroups. The daemons
# run as whoever calls this. NODES=N names N nodes (default: 1), all of them this machine.
set -u

fail() { echo "start_slurm.sh: $1" >&2; exit 2; }

free_ports() { python3 - "$1" <<'PYTHON'
import socket, sys
sockets = [socket.socket() for _ in range(int(sys.argv[1]))]
for one in sockets:
    one.bind(("", 0))
print(*(one.getsockname()[1] for one in sockets))
PYTHON
}

write_configuration() {
  local user nodes="" number
  user=$(id -un)
  for ((number = 1; number <= NODES; number++)); do
    nodes+="NodeName=node$number NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=${ports[number]} CPUs=4 RealMemory=2000"
    nodes+=$'\n'
  done
  cat >"$folder/slurm.conf" <<CONF
ClusterName=one_machine
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,batch_sched_delay=0
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=2
InactiveLimit=0
EnforcePartLimits=NO
${nodes}PartitionName=test Nodes=ALL Default=YES MaxTime=600 State=UP
CONF
  echo "CgroupAutomount=no" >"$folder/cgroup.conf"
}

start() {
  local tool number
  for tool in munged slurmctld slurmd sinfo; do
    command -v "$tool" >/dev/null || fail "$tool is missing: on Debian and Ubuntu, apt install slurm-wlm munge"
  done
  [ ! -e "$folder/slurm.conf" ] || fail "$folder holds a SLURM already: stop it first, or name another folder"
  mkdir -p "$folder/state" || fail "cannot write $folder: name another folder"
  chmod 755 "$folder"
  read -ra ports <<<"$(free_ports $((NODES + 1)))"
  write_configuration
  export SLURM_CONF=$folder/slurm.conf
  (umask 077; head -c 1024 /dev/urandom >"$folder/munge.key")
  munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
    --log-file="$folder/munged.log" --seed-file="$folder/munge.seed" || give_up "munged does not start"
  slurmctld >/dev/null 2>&1 || give_up "slurmctld does not start"
  for ((number = 1; number <= NODES; number++)); do
    mkdir -p "$folder/spool.node$number"
    slurmd -N "node$number" >/dev/null 2>&1 || give_up "slurmd does not start"
  done
  for number in {1..60}; do
    if [ "$(sinfo --noheader --Node --format=%t 2>/dev/null | grep -c '^idle$')" = "$NODES" ]; then
      echo "export SLURM_CONF=$SLURM_CONF"
      return
    fi
    sleep 0.5
  done
  give_up "no node was ready after 30 s"
}

give_up() {
  local line
  line=$(cat "$folder"/*.log 2>/dev/null | grep -iE 'error|fatal' | tail -1)
  stop
  fail "$1: ${line:-no message in the logs}"
}

stop() {
  local file pid
  [ -e "$folder/slurm.conf" ] || fail "no SLURM in $folder"
  SLURM_CONF=$folder/slurm.conf scancel --user="$(id -un)" 2>/dev/null
  for file in "$folder"/slurmd.*.pid "$folder/slurmctld.pid" "$folder/munged.pid"; do
    pid=$(cat "$file" 2>/dev/null) || continue
    kill "$pid" 2>/dev/null
    for _ in {1..50}; do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null
  done
  rm -rf "$folder"
}

NODES=${NODES:-1}
[ $# = 2 ] || fail "usage: start_slurm.sh start|stop DIR"
case $1 in start | stop) ;; *) fail "$1 is neither start nor stop" ;; esac
folder=$(realpath -m "$2")
"$1"
